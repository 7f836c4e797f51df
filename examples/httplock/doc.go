// Package httplock is a lock server and its client over HTTP, with nothing but the
// standard library: an example of a [dlock.Acquirer] whose waiters poll.
//
// A wait is a series of requests, each of which the server holds back for up to half a
// second (a long poll). Between two of them the server knows nothing of the waiter, and
// during one it may believe in a waiter that has just died. So the server does not hand
// over the lock itself, but an offer: it reserves the key for the waiter, which has up to
// three seconds to claim it with another request. An offer that is not claimed ends by itself,
// and the next waiter gets one.
//
// The server keeps its locks in memory and has neither authentication nor replicas.
package httplock
