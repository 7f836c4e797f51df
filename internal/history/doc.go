// Package history records what clients do with a lock, and checks that a correct lock
// could have given these answers.
//
// A [History] consists of operations and certain holds. An [Operation] is one call of a
// [dlock.Locker], with the instants of call and return, and the answer. A certain [Hold] is the
// time in which a client could rely on its lease: it begins when the acquisition returns, and ends
// with the call of Release, the lease's deadline or a loss of all data. A [Recorder] makes a
// History, and [Model.Check] looks for a [Violation].
//
// What is checked, for each key:
//
//   - Certain holds never overlap.
//   - The store loses no lease before its deadline, except with all its data.
//   - Fences follow real time: a later hold has the larger fence, by the model's FenceStep.
//   - The answers are linearizable: the operations could have taken effect one at a
//     time, each at an instant between its call and its return, such that a fenced
//     mutex with expiry gives each of these answers. A lease ends no earlier than its
//     TTL and no later than the model allows.
//
// A Violation is short: it has only those operations without which the rest would be
// possible, and the grants that they are about.
//
// Every doubt is decided in favour of the store, so a slow machine is never a violation.
// An operation without an answer is indeterminate: it may take effect at any time after
// its call, once, several times, or never.
//
// Linearizability is due to Herlihy and Wing ("Linearizability: A Correctness Condition for
// Concurrent Objects", 1990). The search is due to Wing and Gong ("Testing and Verifying Concurrent
// Objects", 1993) in Lowe's just-in-time form ("Testing for Linearizability", 2017), which Knossos
// uses too. Indeterminate operations, and faults that are made while a history is recorded, are
// ideas of Jepsen.
//
// Porcupine has the same search. It does not replace this one: each indeterminate operation stays
// pending to the end of a history and may double the states, and it finds no shortest violation.
package history
