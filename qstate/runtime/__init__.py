"""The processes of a job, the query port and the clients.

Each kind of connection has one word:

    Channel              a socket on a reactor, whose sends never block (net)
    PooledChannel        a channel that the threads of a reading pool read (net)
    ClientConnection     the client's end of the protocol: bytes in, events out, no socket (qstate.protocol)
    ServerConnection     the server's end of the protocol (qstate.protocol)
    AcceptedConnection   a client's connection as a server or proxy holds it: pooled channel and protocol (serving)
    PipelinedConnection  a connection to a proxy or state server that carries many requests, without socket (routing)
    OwnerConnection      a proxy's pipelined connection to one state server (serving)
    Link                 a client's pipelined connection: SyncLink, AsyncLink (client)
    SecureSocket         a socket between two processes of one job, encrypted and authenticated (control)
    RpcPeer              one end of a control connection (control)
    RelayChannel         the relay's end of a task's data connection (relay)
    TaskChannel          the task manager's end of it (relay)
    session              one attempt of one epoch, over a data connection
"""
