// Package museum is a collection of broken locks. Each has one flaw that a real lock library or a well-known recipe has had,
// or that was made to try the conformance suite, and is caught by the cases that it names. Read it to learn what goes wrong.
//
// Start with store.go, which is right: a lock whose waiters queue, and the very small Redis below it. An exhibit is
// a row: it names a hook of the store (museum.go), and what it does there in place of what is right. leases.go has
// those of one key, sets.go those of several; the clauses of the contract say what is right. The comment above a row, or above several, says
// what is wrong, where it was seen, and what harm it does. Without "Seen" the row was made for its case. Exhibits
// from "a trial of the suite" are by people who knew only the documentation of dlock.Locker: the suite missed them
// at first, or found them by luck.
//
//	go test -run TestMuseum -v ./conformance
//
// plays the cases on each. The package is internal so that nobody takes a lock home.
package museum
