// Package museum is a collection of broken locks. Each has one flaw that real
// lock libraries have had, or that well-known recipes have, or that was made to try
// the suite, and each is caught by a case of the conformance suite. Read it to learn what goes wrong.
//
// Start with lock.go and queue.go, which are right: a lock on a very small Redis
// (redis.go), and one whose waiters queue. Nearly every exhibit embeds one of the
// two, and gets one method wrong. There is a file for each room: taking,
// releasing, renewing, time, tokens, fences, waiting, and clients.
//
// The package is internal so that nobody takes a lock home.
package museum
