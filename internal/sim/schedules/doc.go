// Package schedules runs whole Clients on [sim.Server] under every small schedule: every order in which
// requests, replies and messages arrive that differs in few places from the usual one.
package schedules
