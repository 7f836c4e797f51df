// Package faultproxy stands between a client and its store, and makes the network
// between them as bad as a test wants it, when the test wants it.
//
//	p, err := faultproxy.New(server.Addr())
//	defer p.Close()
//	client := dial(p.Addr())
//	lost := p.DropReply(faultproxy.Contains(token), faultproxy.Cut)
//	_, err = client.Renew(ctx, key, token, ttl) // the store has renewed, and err is that of a lost connection
//	<-lost.Struck()
//
// # What is kept
//
// A connection is faulty in ways that TCP can be, and in no others: whatever of its
// bytes arrives is a beginning of what was sent, in the same order. So a request or
// reply that is dropped is followed by nothing on the same connection, and a request
// that is held back holds back what is sent after it on the same connection.
// Connections do not hold up each other.
//
// A client that goes away does not take with it what it has sent: a request that is
// held back or delayed still reaches the store, over the connection that it was sent
// for, which stays open until then. So whatever was set up there (AUTH, SELECT, HELLO)
// still holds.
//
// # Requests and replies
//
// A connection speaks RESP, in version 2 or 3, if the first byte that the client
// sends is an asterisk. Then a request is one command, however many of them share a
// segment and wherever segments end. The reply to it is found by counting, while
// messages and other pushes pass in between. CLIENT REPLY and MONITOR, which break the
// count, are not supported. What turns out not to be RESP is passed on as it is, as
// below.
//
// In any other protocol a request is what one read from the client's connection
// returns: in practice what the client has sent with one write, if that is less than
// 32 kB and the client waits for the reply before it sends more. The reply to it begins
// with the first bytes that the store sends after the request was passed on. A protocol
// that asks one thing after the other (PostgreSQL without pipelines, for instance) is
// served well by this; one with many requests on their way over one connection is not.
package faultproxy
