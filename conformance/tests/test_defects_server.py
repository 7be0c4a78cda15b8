"""Each seeded defect of a server is caught by the law that is meant for it, and a sound server breaks none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest
from hypothesis.errors import FlakyFailure

from qstate_conformance import profiles
from qstate_conformance.laws import Law, find_laws, forget_laws
from qstate_conformance.server import fixture
from qstate_conformance.server.reference_server import reference_server
from qstate_conformance.subjects import ServerSubject
from tests.defects.servers import (
    answering,
    cancelling,
    careless,
    crowded,
    losing,
    partial,
    polling,
    reading,
    scanning,
    streaming,
)
from tests.defects.servers.meddler import Meddler, Spoiler
from tests.defects.servers.sound import SOUND
from tests.defects.servers.spoilers import SPOILERS
from tests.unshrunk import UNSHRUNK

#: Importing them fills the register.
MODULES = (answering, cancelling, careless, crowded, losing, partial, polling, reading, scanning, streaming)
#: The law that must catch each defect.
CAUGHT_BY = {
    "WrongId": "requests.every_request_is_answered_once_with_its_own_answer",
    "SwappedAnswers": "requests.every_request_is_answered_once_with_its_own_answer",
    "AnswersTwice": "requests.every_request_is_answered_once_with_its_own_answer",
    "DropsAnswers": "frames.many_frames_may_come_at_once",
    "MissingKeyIsAFailure": "get.a_key_without_a_value_is_nil",
    "EmptyIsMissing": "get.a_value_of_no_bytes_is_not_nil",
    "FailureWithAnEpoch": "get.a_key_without_an_owner_has_no_location",
    "EpochOfNothing": "get.every_entry_of_the_fixture_is_answered_byte_for_byte",
    "OneResultForRepeatedKeys": "get.results_are_in_the_order_of_the_keys",
    "ResultsInTheOrderOfKeyBytes": "get.results_are_in_the_order_of_the_keys",
    "NoNamespaces": "get.every_entry_of_the_fixture_is_answered_byte_for_byte",
    "NormalizesText": "keys.text_is_not_normalized",
    "UnknownJobIsUnknownState": "get.an_unknown_job_is_unknown",
    "UnsupportedIsMalformed": "get.an_unknown_option_is_not_ignored",
    "WrongKeyTypeIsMalformed": "get.what_is_no_key_is_refused",
    "UnknownIdIsUnknownState": "owners.an_unknown_state_id_is_unknown",
    "NotOwnedIsMissing": "owners.keys_of_other_owners_fail_alone",
    "ServesNothingOnOverload": "limits.requests_over_the_limit_are_overloaded_and_the_rest_answered",
    "IgnoresUnknownOptions": "get.an_unknown_option_is_not_ignored",
    "IgnoresMinEpoch": "demands.an_epoch_that_is_not_reached_is_refused",
    "WantsALaterEpoch": "demands.an_epoch_that_is_reached_is_answered",
    "RefusesTheStrictestBound": "demands.what_is_current_is_fresh_enough_for_any_bound",
    "IgnoresUnknownIsolations": "get.an_unknown_isolation_is_not_ignored",
    "TakesFloatsForIntegers": "messages.what_breaks_a_rule_of_types_or_sizes_is_malformed",
    "ReadsTheShortestFormsAlone": "messages.a_get_is_read_in_every_form",
    "CountsBytesOfNames": "messages.a_name_is_any_string_of_255_code_points",
    "DeadlineInSeconds": "deadlines.a_proxy_answers_by_the_deadline",
    "OwnersInAnyOrder": "locations.a_location_names_the_owner_of_every_key_group",
    "GapsHaveAnOwner": "locations.a_location_names_the_owner_of_every_key_group",
    "DescribesByHalf": "locations.the_states_of_a_job_are_listed",
    "AcceptsTheStartOfAToken": "handshake.a_wrong_token_or_none_is_refused",
    "AcceptsNoToken": "handshake.a_wrong_token_or_none_is_refused",
    "RefusesLaterHellos": "handshake.elements_after_those_of_the_hello_are_ignored",
    "ChoosesTheLowestVersion": "handshake.the_highest_version_in_common_is_chosen",
    "KeepsItsVersionsToItself": "handshake.no_version_in_common_is_refused_with_the_versions",
    "WaitsForHandshakesForEver": "handshake.a_silent_client_is_told_that_it_took_too_long",
    "RequestsBeforeTheHandshake": "handshake.a_first_message_that_is_no_sound_hello_is_malformed",
    "UnpacksWhatItIsSent": "costs.a_first_message_costs_what_its_size_allows",
    "MakesAnswersFirst": "costs.an_answer_that_is_too_large_is_not_made_first",
    "OneConnectionTakesAll": "shares.one_connection_does_not_take_all_room_for_requests",
    "IdleConnectionsKeepTheirPlaces": "shares.an_idle_connection_gives_its_place_to_a_new_one",
    "BusyConnectionsLoseTheirPlaces": "shares.a_connection_with_a_request_in_flight_keeps_its_place",
    "SilentConnectionsGoLast": "shares.a_connection_without_a_handshake_gives_its_place_first",
    "KeepsAllAnswers": "shares.a_client_that_takes_nothing_of_its_answers_loses_its_connection",
    "AnswersOverTheLimit": "get.an_answer_over_the_frame_is_too_large",
    "WaitsForTheWholePayload": "frames.a_longer_frame_is_refused_as_soon_as_its_length_is_known",
    "TakesAReadForAFrame": "frames.a_frame_may_come_byte_by_byte",
    "TakesAReadForOneFrame": "frames.many_frames_may_come_at_once",
    "TalksAfterTheEnd": "broken.a_stream_without_meaning_is_malformed",
    "SilentAtTheEnd": "broken.a_stream_without_meaning_is_malformed",
    "StopsListeningAfterGarbage": "broken.damage_anywhere_in_a_session_harms_nobody_else",
    "BrokenStreamEndsOthers": "broken.damage_anywhere_in_a_session_harms_nobody_else",
    "LeaksPlaces": "broken.broken_connections_give_their_places_back",
    "BadRequestEndsTheConnection": "messages.what_breaks_a_rule_of_types_or_sizes_is_malformed",
    "HalfClosedForEver": "peers.a_half_closed_connection_is_answered_and_ends",
    "IdZeroIsARequest": "broken.a_stream_without_meaning_is_malformed",
    "ComparesTheFirstHalfOfIds": "owners.every_byte_of_a_state_id_counts",
    "ComparesTokensWithoutCase": "handshake.every_bit_of_a_token_counts",
    "TakesNamesWithoutCase": "get.names_are_taken_as_they_are",
    "TakesKeysWithoutCase": "keys.keys_are_taken_as_they_are",
    "CommittedIsLive": "get.a_committed_read_shows_nothing_of_a_later_epoch",
    "TakesAHelloForTheEnd": "requests.a_type_that_is_no_request_is_unsupported",
    "ForgetsDeadlinesUnderLoad": "deadlines.a_server_with_much_to_do_keeps_deadlines",
    "SwapsAnswersAtTheLimit": "limits.at_the_limit_of_requests_each_has_its_own_answer",
    "MixesUpResultsLateInALargeGet": "get.a_large_get_has_every_result_in_its_place",
    "StopsAfterTenThousandRequests": "limits.twenty_thousand_requests_of_one_connection_are_answered",
    "WaitsForTheGone": "shares.a_client_that_takes_nothing_of_its_answers_loses_its_connection",
    "LosesAnswersAtHalfClose": "broken.damage_at_every_place_of_a_session_harms_nobody_else",
    "SendsAgainWhatKilledAnOwner": "losses.a_get_under_which_its_owner_dies_is_not_sent_again",
    "NeverAnswersForSilentOwners": "deadlines.gets_of_a_silent_owner_are_answered_and_give_their_places_back",
    "LosesPlacesToSilentOwners": "deadlines.gets_of_a_silent_owner_are_answered_and_give_their_places_back",
    "NothingCommittedIsNil": "demands.before_the_first_commit_a_committed_read_is_refused",
    "FailsWhereStalenessIsNotKnown": "demands.a_view_that_may_lack_anything_is_too_stale_for_any_bound",
    "OneFingerprintForAll": "losses.values_have_the_fingerprint_of_their_description",
    "FingerprintOfTheFirstDescription": "losses.values_have_the_fingerprint_of_their_description",
    "IgnoresCancel": "cancel.a_request_that_waits_is_answered_when_it_is_cancelled",
    "CancelsTheLatest": "cancel.a_request_that_waits_is_answered_when_it_is_cancelled",
    "AnswersCancel": "cancel.a_cancel_of_nothing_in_flight_is_ignored",
    "LosesTheLastRun": "polls.every_committed_change_comes_once_in_the_order_of_the_epochs",
    "RepeatsChanges": "polls.every_committed_change_comes_once_in_the_order_of_the_epochs",
    "NewestFirst": "polls.every_committed_change_comes_once_in_the_order_of_the_epochs",
    "DeletionsAreEmpty": "polls.every_committed_change_comes_once_in_the_order_of_the_epochs",
    "ShowsMoreThanIsCommitted": "polls.every_committed_change_comes_once_in_the_order_of_the_epochs",
    "ForgetsThePosition": "polls.answers_that_end_within_an_epoch_are_continued",
    "ForgetsTheKeys": "polls.a_poll_selects_by_key_namespace_and_key_group",
    "SkipsWhatIsCompacted": "polls.changes_that_are_not_stored_any_more_are_compacted",
    "SaysThatItHasEverything": "polls.a_server_that_may_lack_any_commit_says_so",
    "KeepsTheOldestToItself": "polls.changes_that_are_not_stored_any_more_are_compacted",
    "MarksNoProgress": "polls.without_changes_a_poll_waits_and_says_how_far_it_is",
    "WritesKeysAsText": "polls.keys_of_every_type_come_as_they_are",
    "WritesNamespacesAsText": "polls.keys_of_every_type_come_as_they_are",
    "WritesMapKeysAsText": "polls.keys_of_every_type_come_as_they_are",
    "VisitsAKeyTwice": "scans.every_key_comes_once_in_order",
    "VisitsKeysInReverse": "scans.every_key_comes_once_in_order",
    "LosesTheKeyAtTheEnd": "scans.a_scan_goes_on_from_any_place",
    "GoesOnWhereItBegan": "scans.a_scan_goes_on_from_any_place",
    "ScansAreLive": "scans.a_committed_scan_shows_the_committed_epoch",
    "PagesAreOfManyEpochs": "scans.values_that_fill_frames_come_on_several_pages",
    "TooLargeIsLeftOut": "scans.values_that_fill_frames_come_on_several_pages",
    "TooLargeEndsTheScan": "scans.values_that_fill_frames_come_on_several_pages",
    "ForgetsThePrefix": "scans.a_selection_has_its_keys_alone",
    "TakesAPrefixForAColumn": "scans.a_selection_has_its_keys_alone",
    "ForgetsTheNamespace": "scans.a_selection_has_its_keys_alone",
    "ForgetsTheLimit": "scans.a_scan_shows_what_was_asked_for_and_no_more",
    "ShowsEverything": "scans.a_scan_shows_what_was_asked_for_and_no_more",
    "BeginsAgainAfterTheLastGroup": "scans.there_are_no_keys_after_the_last_group",
    "ForgetsDemandsOfScans": "scans.a_scan_that_cannot_be_answered_fails_by_code",
    "VisitsNothingThatIsNotOwned": "scans.a_scan_that_cannot_be_answered_fails_by_code",
    "ScansWhatIsNotOffered": "scans.a_scan_that_is_not_offered_is_unsupported",
    "BeginsExpiredScansAgain": "scans.a_view_belongs_to_its_owner",
    "ViewsAreNumbers": "scans.a_view_belongs_to_its_owner",
    "KeepsAnyNumberOfViews": "scans.views_are_bounded",
    "EndsAfterOnePage": "parts.pages_have_each_entry_once_in_order",
    "PagesFromTheBeginning": "parts.pages_have_each_entry_once_in_order",
    "SlicesFromTheBeginning": "parts.a_slice_has_the_elements_between_two_positions",
    "GivesTheFirstEntryAlone": "parts.entries_are_those_that_are_there",
    "NoEntriesAreAnEmptyMap": "parts.entries_are_those_that_are_there",
    "PartsAreLive": "parts.a_slice_has_the_elements_between_two_positions",
    "OneVersionForAll": "parts.pieces_make_the_whole_answer",
    "EachPieceHasAVersion": "parts.pieces_make_the_whole_answer",
    "DescribesOnePage": "descriptions.pages_have_all_descriptions",
    "DescribesInReverse": "descriptions.pages_have_all_descriptions",
    "AnswersARepeatedPingOnce": "broken.damage_at_every_place_of_a_session_harms_nobody_else",
}


def server_laws(profile: str) -> Iterator[dict[str, Law]]:
    """The server laws by id, with the examples of a profile."""
    forget_laws()
    with profiles.active(profile, 0):
        yield {law.id: law for law in find_laws("server")}
    forget_laws()


@pytest.fixture(scope="module")
def laws() -> Iterator[dict[str, Law]]:
    yield from server_laws(UNSHRUNK)


@pytest.fixture(scope="module")
def laws_in_brief() -> Iterator[dict[str, Law]]:
    """With few examples: that a sound server passes them all is proved elsewhere, here it is only behind a meddler."""
    yield from server_laws("dev")


@contextmanager
def spoiled(spoiler: type[Spoiler]) -> Iterator[ServerSubject]:
    """The reference server, which wants a token, behind a meddler."""
    with ExitStack() as stack:
        running = stack.enter_context(reference_server(token=fixture.TOKEN))
        meddler = stack.enter_context(Meddler(running.address, spoiler))
        meddler.stand_before([server.address for server in running.servers])
        yield ServerSubject(*meddler.address, fixture.TOKEN)


def test_every_defect_has_a_law_that_is_meant_for_it() -> None:
    assert MODULES
    assert {spoiler.__name__ for spoiler in SPOILERS} == CAUGHT_BY.keys()


@pytest.mark.parametrize("spoiler", SPOILERS, ids=lambda spoiler: spoiler.__name__)
def test_a_defect_is_caught_by_its_law(spoiler: type[Spoiler], laws: dict[str, Law]) -> None:
    law = laws[f"server.{CAUGHT_BY[spoiler.__name__]}"]
    # A defect that depends on what is in flight need not show when the same example is tried again: Hypothesis then
    # says so beside the violation that it saw.
    with spoiled(spoiler) as subject, pytest.raises((AssertionError, FlakyFailure)) as caught:
        law.function(subject=subject)
    if isinstance(caught.value, FlakyFailure):
        assert caught.value.subgroup(AssertionError) is not None


@pytest.mark.parametrize("name", sorted(set(CAUGHT_BY.values())))
def test_a_law_that_catches_a_defect_holds_without_it(name: str, laws_in_brief: dict[str, Law]) -> None:
    with spoiled(Spoiler) as subject:
        laws_in_brief[f"server.{name}"].function(subject=subject)


@pytest.mark.parametrize("sound", SOUND, ids=lambda sound: sound.__name__)
@pytest.mark.parametrize("group", ["broken", "frames", "peers", "requests"])
def test_laws_of_streams_hold_for_servers_with_other_permitted_behaviour(
    group: str, sound: type[Spoiler], laws_in_brief: dict[str, Law]
) -> None:
    with spoiled(sound) as subject:
        for law in laws_in_brief.values():
            if law.group == group:
                law.function(subject=subject)
