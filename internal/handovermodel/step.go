package main

import "slices"

// An event is what may happen in a state.
type event struct {
	kind eventKind
	n    int // the client, the token, or the place of the call or message
}

type eventKind uint8

const (
	tick eventKind = iota
	execute
	receive
	message
	begin
	checksIn
	renewNow
	releaseNow
	retriesRelease
	lost     // fault timeout: the call never arrives, or its answer is lost
	slow     // fault timeout: the call arrives later
	dropped  // fault drop
	cancels  // fault cancel
	swallows // fault cancel, when a message had arrived already
	crashes
	sees // the server sees that a subscription has ended
	unsubscribes
	hangUp // the client sees it
	opens
	notices // that the inbox has changed
	detaches
	wipes
	copies // the replica catches up
	fails
	dropsRelease
	passesOn
	splits
	executeFormer
	writes
)

// events yields each event that may happen.
func (w *world) events(yield func(event) bool) {
	more := true
	w.each(func(e event) { more = more && yield(e) })
}

// each calls f for each event that may happen.
func (w *world) each(f func(event)) {
	if (w.Left[delay] > 0 || w.quiet()) && !(w.c.timed() && int(w.Time) >= w.c.LastTick) {
		f(event{tick, 0})
	}
	w.onTheWay(f)
	for i := range w.c.Clients {
		w.clientEvents(i, f)
	}
	for i := range w.Tokens {
		if w.Tokens[i].Owed != nothingOwed && !w.releasing(token(i+1)) {
			f(event{retriesRelease, i + 1})
			if w.Left[dropRelease] > 0 && w.mayDropRelease(token(i+1)) {
				f(event{dropsRelease, i + 1})
			}
		}
	}
	if w.Left[wipe] > 0 {
		f(event{wipes, 0})
	}
	if w.Left[failover] > 0 {
		f(event{copies, 0})
		f(event{fails, 0})
	}
	if w.Left[split] > 0 && !w.Split {
		f(event{copies, 0})
		f(event{splits, 0})
	}
}

func (w *world) onTheWay(f func(event)) {
	for i, call := range w.Calls {
		if call.Script == noScript || i > 0 && call == w.Calls[i-1] {
			continue
		}
		if call.Answer == unanswered {
			f(event{execute, i})
			if w.Split && w.Left[split] > 0 {
				f(event{executeFormer, i})
			}
		} else if !w.uncopied(call) || call.Former {
			f(event{receive, i})
		}
		if call.Wanted && !call.Last && w.Left[timeout] > 0 {
			f(event{lost, i})
			if call.Answer == unanswered {
				f(event{slow, i})
			}
		}
	}
	for i, m := range w.Msgs {
		if m.Token == 0 || i > 0 && m == w.Msgs[i-1] {
			continue
		}
		f(event{message, i})
		if w.Left[drop] > 0 {
			f(event{dropped, i})
		}
	}
}

func (w *world) clientEvents(i int, f func(event)) {
	cl := &w.Clients[i]
	switch cl.Phase {
	case crashed:
		if cl.Sub && w.c.process(i) == i {
			f(event{sees, i})
		}
		return
	case idle:
		if cl.More > 0 {
			f(event{begin, i})
		}
	case trying, retry, waiting:
		if w.Left[cancel] > 0 {
			f(event{cancels, i})
			if w.messageFor(cl.Token) >= 0 {
				f(event{swallows, i})
			}
		}
		if cl.Changed {
			f(event{notices, i})
		}
		if cl.Phase == waiting && !cl.Calling && !w.c.without(waitersCheckIn) && w.checksIn(i) {
			f(event{checksIn, i})
		}
	case holding:
		if w.c.Resource {
			f(event{writes, i})
		}
		if !cl.Calling {
			f(event{releaseNow, i})
			if !w.c.NoRenew {
				f(event{renewNow, i})
			}
			if w.Left[detach] > 0 && cl.Away.Token == 0 {
				f(event{detaches, i})
			}
			if w.Left[turn] > 0 {
				f(event{passesOn, i})
			}
		}
	}
	if w.Left[crash] > 0 {
		f(event{crashes, i})
	}
	w.inboxEvents(i, f)
}

func (w *world) inboxEvents(i int, f func(event)) {
	cl := &w.Clients[i]
	switch {
	case i < w.c.Unsubscribed, w.c.process(i) != i:
	case cl.Live && cl.Sub:
		if w.Left[subLoss] > 0 {
			f(event{unsubscribes, i})
		}
	case cl.Live:
		f(event{hangUp, i})
	default:
		f(event{opens, i})
	}
}

// happen changes the world as an event does.
func (w *world) happen(e event) {
	switch e.kind {
	case tick:
		w.tick()
	case execute:
		w.arrive(e.n)
	case executeFormer:
		w.Left[split]--
		w.atFormer(func() { w.arrive(e.n) })
	case writes:
		w.write(&w.Clients[e.n])
	case receive:
		if call := w.removeCall(e.n); w.uncopied(call) {
			w.fail(call)
		} else {
			w.take(call)
		}
	case message:
		w.deliver(w.removeMessage(e.n))
	case begin:
		w.begin(e.n)
	case checksIn:
		w.send(e.n)
	case renewNow:
		w.sendRenewal(e.n)
	case releaseNow:
		w.endLease(e.n)
	case retriesRelease:
		w.retryRelease(token(e.n))
	case sees:
		w.Clients[e.n].Sub = false
	case hangUp:
		w.changes(e.n, false)
	case opens:
		w.Clients[e.n].Sub = true
		w.changes(e.n, true)
	case notices:
		w.notices(e.n)
	case copies:
		w.copy()
	default:
		w.goWrong(e)
	}
}

// mayDropRelease reports whether only the inbox can give a grant back: there is no
// grant yet, or its message is in flight, and no other call is.
func (w *world) mayDropRelease(t token) bool {
	other := func(c Call) bool {
		return c.Token == t && c.Script != releaseScript
	}
	return (w.Server.Holder != t || w.messageFor(t) >= 0) && !slices.ContainsFunc(w.Calls[:], other)
}

// goWrong makes a fault happen.
func (w *world) goWrong(e event) {
	switch e.kind {
	case lost:
		w.Left[timeout]--
		w.fail(w.removeCall(e.n))
	case slow:
		w.Left[timeout]--
		call := w.Calls[e.n]
		w.Calls[e.n].Wanted = false
		w.fail(call)
	case dropped:
		w.Left[drop]--
		w.removeMessage(e.n)
	case cancels:
		w.Left[cancel]--
		w.cancel(e.n)
	case swallows:
		w.Left[cancel]--
		w.removeMessage(w.messageFor(w.Clients[e.n].Token))
		w.cancel(e.n)
	case crashes:
		w.Left[crash]--
		for i := range w.c.Clients {
			if w.c.process(i) == w.c.process(e.n) {
				w.crash(i)
			}
		}
	case unsubscribes:
		w.Left[subLoss]--
		w.Clients[e.n].Sub = false
	case dropsRelease:
		w.Left[dropRelease]--
		w.Tokens[e.n-1].Owed, w.Tokens[e.n-1].Until = nothingOwed, 0
	case detaches:
		w.Left[detach]--
		cl := &w.Clients[e.n]
		cl.Away = Away{cl.Token, cl.Fence, cl.Rest}
		w.clear(e.n)
		cl.Phase, cl.Token = idle, 0
	case passesOn:
		w.Left[turn]--
		w.passOn(e.n)
	case splits:
		w.failUncopied()
		w.Server, w.Former, w.Replica = w.Replica, w.Server, Server{}
		w.Split = true
		w.Term++
		for i := range w.Clients {
			w.Clients[i].Sub = false
		}
	case wipes:
		w.Left[wipe]--
		w.lose(Server{})
	case fails:
		w.Left[failover]--
		w.failUncopied()
		w.lose(w.Replica)
		w.Term++
		for i := range w.Clients {
			w.Clients[i].Sub = false
		}
	}
}

// counts reports whether an answer is a grant or a renewal.
func (c *Call) counts() bool {
	return c.Answer == answerGranted || c.Answer == answerFound || c.Script == renewScript && c.Answer == answerHeld
}

// uncopied reports whether an answer does not count because the replica does not have what the call
// wrote. There is one replica, and WAIT for it is behind the call.
func (w *world) uncopied(call Call) bool {
	return w.c.Replicated && call.counts() && !call.Copied && !w.c.without(replicasHaveIt)
}

// hasReplica reports whether there is a replica whose copy matters.
func (w *world) hasReplica() bool { return w.Left[failover] > 0 || w.c.Faults[split] > 0 && !w.Split }

func (w *world) copy() {
	w.Replica = w.Server
	for i := range w.Calls {
		w.Calls[i].Copied = w.c.Replicated && w.Calls[i].Answer != unanswered
	}
}

// failUncopied makes calls fail for which WAIT will never be answered.
func (w *world) failUncopied() {
	var failed []Call
	for i, call := range w.Calls {
		if w.uncopied(call) {
			failed = append(failed, w.removeCall(i))
		}
	}
	for _, call := range failed {
		w.fail(call)
	}
}

// lose makes the server go on with what is left. That takes some time.
func (w *world) lose(s Server) {
	w.Lost = max(w.Lost, w.Server.Counter)
	w.Server = s
	w.Replica = Server{}
	w.tick()
}

func (w *world) crash(c int) {
	for i := range w.Calls {
		if call := &w.Calls[i]; call.Script != noScript && w.c.client(call.Token) == c {
			call.ignore()
		}
	}
	for i := range w.Tokens {
		if w.c.client(token(i+1)) == c {
			w.Tokens[i] = Token{}
		}
	}
	w.Clients[c] = Client{Phase: crashed, Sub: w.Clients[c].Sub, Away: w.Clients[c].Away}
}

// quiet reports that nothing is in flight.
func (w *world) quiet() bool { return w.Calls == [maxCalls]Call{} && w.Msgs == [maxMsgs]Message{} }

// tick lets time pass.
func (w *world) tick() {
	if n := &w.Left[delay]; *n > 0 && *n < unlimited && !w.quiet() {
		*n--
	}
	w.Server.pass(w.c)
	if w.hasReplica() {
		w.Replica.pass(w.c)
	}
	w.Former.pass(w.c)
	if w.c.timed() {
		w.Time = min(w.Time+1, lastTick)
	}
	for i := range w.Calls {
		if call := &w.Calls[i]; call.Script != noScript {
			call.Age = min(call.Age+1, uint8(w.c.TTL))
		}
	}
	for i := range w.Msgs {
		w.Msgs[i].pass(w.c)
	}
	for i := range w.Tokens {
		if w.Tokens[i].Until > 0 {
			w.Tokens[i].Until--
		}
	}
	for c := range w.c.Clients {
		w.Clients[c].Early.pass(w.c)
		w.age(c)
	}
	if w.c.Prompt {
		w.loseOld()
	}
}

func (m *Message) pass(c *Config) {
	if m.Token != 0 {
		m.Age = min(m.Age+1, uint8(c.FirstTTL))
	}
}

// age lets a tick of time pass for the leases of a client.
func (w *world) age(c int) {
	cl := &w.Clients[c]
	if cl.Phase == holding {
		if cl.Rest--; cl.Rest == 0 {
			w.expire(c)
		}
	}
	if cl.Away.Rest > 0 {
		cl.Away.Rest--
	}
}

// loseOld loses calls that have been on their way for a TTL.
func (w *world) loseOld() {
	for i := range w.Calls {
		call := &w.Calls[i]
		if call.Script != noScript && !call.Wanted && call.Age >= uint8(w.c.TTL) {
			*call = Call{}
		}
	}
}

func (w *world) call(c Call) {
	for i := range w.Calls {
		if w.Calls[i].Script == noScript {
			w.Calls[i] = c
			return
		}
	}
	w.full = true
}

// atFormer calls f with the former server in the place of the server.
func (w *world) atFormer(f func()) {
	w.Server, w.Former, w.former = w.Former, w.Server, true
	f()
	w.Server, w.Former, w.former = w.Former, w.Server, false
}

// arrive lets the server run the script of a call. An answer that nobody waits for
// is lost. A call that has only removed dead waiters is under way again.
func (w *world) arrive(i int) {
	call := &w.Calls[i]
	w.execute(call)
	call.Former = w.former && w.c.Replicated
	call.Copied = w.c.Replicated && !w.hasReplica() && !call.Former
	if call.Answer == answerUnswept {
		call.Answer = unanswered
	} else if !call.Wanted {
		*call = Call{}
	} else if call.Answer == answerWaits {
		w.passes(call.Token)
	}
}

// passes notes that the server has answered "waits" since the grants of a token of which
// messages tell.
func (w *world) passes(t token) {
	for i := range w.Msgs {
		if m := &w.Msgs[i]; m.Token == t {
			m.Past = true
		}
	}
	if m := &w.Clients[w.c.client(t)].Early; m.Token == t {
		*m = Message{}
	}
}

func (w *world) removeCall(i int) Call {
	call := w.Calls[i]
	w.Calls[i] = Call{}
	return call
}

func (w *world) removeMessage(i int) Message {
	m := w.Msgs[i]
	w.Msgs[i] = Message{}
	return m
}

func (w *world) messageFor(t token) int {
	return slices.IndexFunc(w.Msgs[:], func(m Message) bool { return m.Token == t })
}

// unwant makes nobody wait for the answers to calls of a token.
func (w *world) unwant(t token) {
	for i := range w.Calls {
		call := &w.Calls[i]
		if call.Token == t && call.Script != releaseScript {
			call.ignore()
		}
	}
}

// ignore makes nobody wait for the answer to a call.
func (c *Call) ignore() {
	if c.Wanted = false; c.Answer != unanswered {
		*c = Call{}
	}
}

func (w *world) releasing(t token) bool {
	return slices.ContainsFunc(w.Calls[:], func(c Call) bool {
		return c.Token == t && c.Script == releaseScript && c.Wanted
	})
}
