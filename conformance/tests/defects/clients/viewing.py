"""Clients whose views can be changed, or differ from the answer."""

from __future__ import annotations

from typing import Any

from qstate import views
from qstate.client import QueryableStateClient
from qstate.errors import SerializationError
from qstate.serializers import unpacker
from qstate_conformance.client.python_driver import PythonDriver
from tests.defects.clients.seeds import defect


@defect("views.every_mutator_of_a_view_refuses")
def has_a_view_that_can_be_changed() -> None:
    views.ReadOnlyValueState.update = lambda self, value: setattr(self, "_decoded", value)  # type: ignore[assignment]


@defect("views.every_mutator_of_a_view_refuses")
def has_a_map_view_whose_remove_does_nothing() -> None:
    views.ReadOnlyMapState.remove = lambda self, key: None  # type: ignore[assignment]


@defect("views.what_is_inside_a_view_refuses_too")
def hands_out_lists_that_can_be_changed() -> None:
    views._unpack_frozen = unpacker(list_hook=list, object_pairs_hook=views._read_only_pairs)


@defect("views.what_is_inside_a_view_refuses_too")
def hands_out_dicts_that_can_be_changed() -> None:
    views._unpack_frozen = unpacker(list_hook=views._read_only_list)


@defect("views.no_attempt_changes_what_is_read")
def forgets_one_mutator_of_lists() -> None:
    del views.ReadOnlyList.sort
    del views.ReadOnlyList.reverse


@defect("values.a_key_without_a_value_is_not_found_and_no_failure")
def takes_nil_for_nothing() -> None:
    class Hasty(QueryableStateClient):
        def get(self, *args: Any, **kwargs: Any) -> Any:
            view = super().get(*args, **kwargs)
            is_nil = isinstance(view, views.ReadOnlyValueState) and view.value() is None
            return None if is_nil else view

    PythonDriver.make_client = Hasty


@defect("values.tuples_within_tuples_without_end_harm_nothing")
def takes_what_is_too_deep_for_nothing() -> None:
    class Shallow(QueryableStateClient):
        def get(self, *args: Any, **kwargs: Any) -> Any:
            view = super().get(*args, **kwargs)
            try:
                view.value()
            except SerializationError:
                return None
            return view

    PythonDriver.make_client = Shallow


@defect("values.numbers_at_the_edges_are_read_exactly")
def reads_integers_as_floats() -> None:
    unpack = views.ReadOnlyState._unpack

    def unpack_as_float(data: bytes) -> Any:
        value = unpack(data)
        return int(float(value)) if type(value) is int else value

    views.ReadOnlyState._unpack = staticmethod(unpack_as_float)  # type: ignore[assignment]


@defect("values.a_map_state_gives_its_entries")
def reads_map_keys_as_text() -> None:
    entries = views.ReadOnlyMapState.entries
    views.ReadOnlyMapState.entries = lambda self: tuple(  # type: ignore[method-assign]
        (str(key), value) for key, value in entries(self)
    )


@defect("values.an_unknown_serializer_is_named_or_its_bytes_handed_out")
def guesses_at_an_unknown_serializer() -> None:
    make = views.ViewMaker.__init__

    def make_anyhow(self: Any, description: Any, serializers: Any) -> None:
        known = description["serializer"] in serializers
        make(self, description if known else {**description, "serializer": "msgpack"}, serializers)

    views.ViewMaker.__init__ = make_anyhow  # type: ignore[method-assign]


@defect("values.a_state_that_the_client_cannot_read_is_listed_and_only_reading_it_fails")
def lists_only_what_it_can_read() -> None:
    states = QueryableStateClient.states

    class Picky(QueryableStateClient):
        def states(self, *args: Any, **kwargs: Any) -> Any:
            return [state for state in states(self, *args, **kwargs) if state["kind"] in views.VIEW_OF]

    PythonDriver.make_client = Picky
