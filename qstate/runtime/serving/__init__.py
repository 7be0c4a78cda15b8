"""The query port: the state server, the client proxy and what one needs to embed them in any Python program.

Rules of this module: names only. It works where neither Spark nor RocksDB nor PyArrow is installed.

A `StateRegistry` has the states, a `StateServer` answers by state id, and a `ClientProxy` finds the server of each key
through a `LocationOracle` and answers clients by job and state.
"""

from qstate.host.ports import Ports
from qstate.runtime.control.statistics import InMemoryStatistics, RequestStatistics, StatisticsSnapshot
from qstate.runtime.routing.location import LocationOracle, LocationTable, Owner
from qstate.runtime.serving.client_proxy import ClientProxy
from qstate.runtime.serving.endpoint import EndpointOptions
from qstate.runtime.serving.registry import StateInstance, StateListener, StateRegistry
from qstate.runtime.serving.state_server import StateServer
from qstate.tls import ClientTls, ServerTls

__all__ = [
    "ClientProxy",
    "ClientTls",
    "EndpointOptions",
    "InMemoryStatistics",
    "LocationOracle",
    "LocationTable",
    "Owner",
    "Ports",
    "RequestStatistics",
    "ServerTls",
    "StateInstance",
    "StateListener",
    "StateRegistry",
    "StateServer",
    "StatisticsSnapshot",
]
