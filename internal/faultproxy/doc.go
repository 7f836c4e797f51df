// Package faultproxy is a proxy between a client and its store. Tests use it to break the network
// between the two at chosen moments.
//
//	p, err := faultproxy.New(server.Addr())
//	defer p.Close()
//	client := dial(p.Addr())
//	lost := p.DropReply(faultproxy.Contains(token), faultproxy.Cut)
//	_, err = client.Renew(ctx, key, token, ttl) // the store has renewed, but the connection is lost
//	<-lost.Struck()
//
// # What a faulty connection still guarantees
//
// A connection fails only in ways that are possible with TCP: the bytes that arrive are a prefix
// of the bytes that were sent. So nothing follows a dropped request or reply on its connection,
// and a request that is held back also holds back what is sent after it on the same connection.
// Connections do not affect each other.
//
// If a client closes its connection, a request that is held back or delayed still reaches the
// store. It uses the connection to the store that it was sent for, which stays open until then.
// So the effect of earlier commands on that connection (AUTH, SELECT, HELLO) remains.
//
// # Requests and replies
//
// If the first byte from the client is an asterisk, the connection speaks RESP, version 2 or 3.
// Then a request is one command, wherever the TCP segments begin and end. Replies are assigned to
// requests by counting them; messages and other pushes are not counted. CLIENT REPLY and MONITOR
// are not supported, because they break the count. From the first bytes that are not RESP, the
// connection is treated as another protocol.
//
// In another protocol, a request is what one read from the client's connection returns. In
// practice that is what the client sends with one write, if that is less than 32 kB and the client
// waits for each reply. The reply begins with the first bytes that the store sends after the
// request was passed on. This suits protocols with one request at a time, such as PostgreSQL
// without pipelines. It does not suit protocols with several requests in flight on a connection.
package faultproxy
