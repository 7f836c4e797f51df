package main

import (
	"bytes"
	"cmp"
	"slices"
	"strings"
	"unsafe"

	"github.com/dlock-go/dlock/internal/modelcheck"
)

// A world is a state that is being changed. It is its own violation.
type world struct {
	State
	c      *Config
	broken property
	why    string
	full   bool
}

// Error says what is broken.
func (w *world) Error() string { return string(w.broken) + ": " + w.why }

func (w *world) breaks(p property, why string) {
	if w.broken == "" {
		w.broken, w.why = p, why
	}
}

// An event is what may happen in a state, to a client, to a node, or to a call to a node.
type event struct {
	kind eventKind
	n, i uint8 // the node, and the client or the call
}

type eventKind uint8

const (
	passes eventKind = iota
	executes
	receives
	loses
	delayed
	arrivesTwice
	begins
	asks
	confirms
	givesBack
	cancels
	givesUp
	renews
	heals
	repeated
	ends
	adopts
	wiped
	saves
	restarted
	drifted
)

// Start, Each, Do and Check make a configuration a modelcheck.Model.
func (c *Config) Start() (State, []event) {
	w, events := c.named(), []event(nil)
	for _, text := range c.Begin {
		events = append(events, w.must(text))
	}
	for n := range w.Nodes {
		w.Nodes[n].Name = 0
	}
	for i := range w.Clients {
		w.Clients[i].Name = 0
	}
	return w.State, events
}

// named is the first state of all, with names.
func (c *Config) named() *world {
	w := &world{c: c}
	w.Left = c.Left
	for i := range c.Clients {
		w.Clients[i] = Client{More: c.Acquire[i], Name: uint8('A' + i)}
	}
	for n := range c.Nodes {
		w.Nodes[n] = Node{Store: Store{Age: uint8(c.guard()), Counter: c.Counters[n]}, Name: uint8(n + 1)}
	}
	w.canonical()
	return w
}

// must makes the event happen that has a text.
func (w *world) must(text string) (found event) {
	ok := false
	w.each(func(e event) {
		if !ok && strings.HasPrefix(w.event(e), text) {
			found, ok = e, true
		}
	})
	if !ok {
		panic("nothing that begins with " + text)
	}
	w.happen(found)
	w.canonical()
	return found
}

// Do is one step.
func (c *Config) Do(s *State, e event) (State, error) {
	w := &world{State: *s, c: c}
	w.happen(e)
	if w.full {
		return w.State, modelcheck.ErrFull
	}
	w.canonical()
	if w.broken != "" {
		return w.State, w
	}
	return w.State, nil
}

// Check has nothing to do: what is broken was broken by a step.
func (c *Config) Check(*State) error { return nil }

// Each calls f for each event that may happen.
func (c *Config) Each(s *State, f func(event)) {
	w := &world{State: *s, c: c}
	w.each(f)
}

func (w *world) each(f func(event)) {
	c := w.c
	if w.Left[ticks] > 0 {
		f(event{kind: passes})
	}
	for n := range c.Nodes {
		node := &w.Nodes[n]
		if n > 0 && !c.without(distinctNodes) && *node == w.Nodes[n-1] {
			continue // the same may happen there
		}
		w.callEvents(n, f)
		if w.Left[wipes] > 0 {
			f(event{kind: wiped, n: uint8(n)})
		}
		if w.Left[restarts] > 0 {
			f(event{kind: saves, n: uint8(n)})
			f(event{kind: restarted, n: uint8(n)})
		}
		if w.Left[drifts] > 0 && node.Holder != 0 {
			f(event{kind: drifted, n: uint8(n)})
		}
		for i := range c.Clients {
			w.voteEvents(i, n, f)
		}
	}
	for i := range c.Clients {
		w.clientEvents(i, f)
	}
}

func (w *world) callEvents(n int, f func(event)) {
	node := &w.Nodes[n]
	for i, call := range node.Calls {
		e := func(k eventKind) { f(event{kind: k, n: uint8(n), i: uint8(i)}) }
		if call.Kind == noCall || i > 0 && call == node.Calls[i-1] {
			continue
		}
		if call.Answer == unanswered || call.Answer == queued && node.Holder == 0 {
			e(executes)
		} else if call.Answer != queued {
			e(receives)
		}
		if call.Wanted && w.Left[losses] > 0 {
			e(loses)
		}
		if call.Answer == unanswered && call.Wanted && w.Left[delays] > 0 {
			e(delayed)
		}
		if call.Answer == unanswered && w.Left[doubles] > 0 {
			e(arrivesTwice)
		}
	}
}

// voteEvents are those of a client on one node.
func (w *world) voteEvents(c, n int, f func(event)) {
	cl, v := &w.Clients[c], &w.Nodes[n].Votes[c]
	e := func(k eventKind) { f(event{kind: k, n: uint8(n), i: uint8(c)}) }
	if cl.Phase == holding && v.No && w.idle(c, n) {
		if _, ok := w.majority(c, func(v *Vote) bool { return v.Rest > 0 }); ok {
			e(heals)
		}
	}
	if cl.Phase != trying || w.Left[rounds] == 0 {
		return
	}
	if w.mayAsk(c, n) && (!v.Spoiled || w.c.without(spoiledTokens)) {
		e(asks)
	}
	if v.Number > 0 && w.idle(c, n) {
		e(confirms)
	}
	if w.owns(c, n) && !w.inFlight(c, n, release) && (v.Number > 0 || w.inFlight(c, n, vote)) {
		e(givesBack)
	}
}

func (w *world) clientEvents(c int, f func(event)) {
	e := func(k eventKind) { f(event{kind: k, i: uint8(c)}) }
	if c > 0 && w.Clients[c] == w.Clients[c-1] && w.Clients[c].Phase == idle {
		return // the same may happen to that client
	}
	switch cl := &w.Clients[c]; cl.Phase {
	case idle:
		if cl.More > 0 {
			e(begins)
		}
	case trying:
		if w.Left[quits] > 0 {
			e(cancels)
		}
		if w.Left[quits] > 0 && cl.Rest == 0 {
			e(givesUp)
		}
	case holding:
		e(ends)
		if w.Left[renewals] > 0 {
			e(renews)
		}
		if w.Left[repeats] > 0 {
			e(repeated)
		}
	case lapsed:
		if w.Left[adoptions] > 0 {
			e(adopts)
		}
	}
}

// happen changes the world as an event does.
func (w *world) happen(e event) {
	n, i := int(e.n), int(e.i)
	node := &w.Nodes[n]
	switch e.kind {
	case passes:
		w.tick()
	case executes:
		w.execute(n, i)
	case receives:
		w.take(n, w.remove(n, i))
	case loses:
		w.Left[losses]--
		w.fail(n, w.remove(n, i))
	case delayed:
		w.Left[delays]--
		w.fail(n, node.Calls[i])
		node.Calls[i].ignore()
	case arrivesTwice:
		w.Left[doubles]--
		w.put(n, Call{Kind: node.Calls[i].Kind, Token: node.Calls[i].Token, Fence: node.Calls[i].Fence})
	case begins:
		w.begin(i)
	case asks:
		w.Left[rounds]--
		w.send(n, Call{Kind: vote, Token: w.Clients[i].Token})
	case confirms:
		w.Left[rounds]--
		w.send(n, Call{Kind: confirm, Token: w.Clients[i].Token})
	case givesBack:
		w.Left[rounds]--
		w.giveBack(i, n)
	case cancels:
		w.Left[quits]--
		w.quit(i, false)
	case givesUp:
		w.Left[quits]--
		w.quit(i, true)
	case heals:
		w.heal(i, n)
	case renews:
		w.Left[renewals]--
		w.renew(i)
	case repeated:
		w.Left[repeats]--
		w.attempt(i)
	case adopts:
		w.Left[adoptions]--
		w.Clients[i].Phase = adopting
		w.renew(i)
	case ends:
		w.end(i)
	case wiped:
		w.Left[wipes]--
		w.restart(n, Store{})
	case saves:
		node.Saved = node.Store
		node.Saved.Age = 0
	case restarted:
		w.Left[restarts]--
		w.restart(n, node.Saved)
	case drifted:
		w.Left[drifts]--
		node.pass(w.c)
	}
}

// tick lets time pass.
func (w *world) tick() {
	if w.Left[ticks] < unlimited {
		w.Left[ticks]--
	}
	for n := range w.c.Nodes {
		node := &w.Nodes[n]
		node.pass(w.c)
		if w.Left[restarts] > 0 {
			node.Saved.pass(w.c)
		}
		node.Saved.Age = 0
		for i := range node.Calls {
			if call := &node.Calls[i]; call.Kind != noCall {
				call.Age = min(call.Age+1, uint8(w.c.TTL))
			}
		}
		for c := range node.Votes {
			if v := &node.Votes[c]; v.Rest > 0 {
				v.Rest--
			}
		}
	}
	for c := range w.c.Clients {
		if cl := &w.Clients[c]; cl.Rest > 0 {
			if cl.Rest--; cl.Rest == 0 && cl.Phase == holding {
				w.expire(c)
			}
		}
	}
}

// expire ends a lease on its deadline.
func (w *world) expire(c int) {
	if w.Left[adoptions] == 0 {
		w.stop(c)
		return
	}
	w.unwant(c, vote, confirm, release)
	w.Clients[c].Phase = lapsed
	w.forget(c)
}

// send puts a call in flight whose answer is waited for.
func (w *world) send(n int, call Call) {
	call.Wanted = true
	w.put(n, call)
}

func (w *world) put(n int, call Call) {
	i := slices.IndexFunc(w.Nodes[n].Calls[:], func(c Call) bool { return c.Kind == noCall })
	if w.full = w.full || i < 0; !w.full {
		w.Nodes[n].Calls[i] = call
	}
}

func (w *world) remove(n, i int) Call {
	call := w.Nodes[n].Calls[i]
	w.Nodes[n].Calls[i] = Call{}
	return call
}

// inFlight reports whether a client waits for the answer to a call, asked since the last give-back.
func (w *world) inFlight(c, n int, k kind) bool {
	return slices.ContainsFunc(w.Nodes[n].Calls[:], func(call Call) bool {
		return call.Kind == k && call.Token == w.Clients[c].Token && call.Wanted && !call.Stale
	})
}

// idle reports whether a client waits for no answer of a node.
func (w *world) idle(c, n int) bool {
	return !w.inFlight(c, n, vote) && !w.inFlight(c, n, confirm) && !w.inFlight(c, n, release)
}

// unwant makes a client wait no longer for answers to calls of some kinds.
func (w *world) unwant(c int, kinds ...kind) {
	for n := range w.c.Nodes {
		for i := range w.Nodes[n].Calls {
			call := &w.Nodes[n].Calls[i]
			if call.Token == w.Clients[c].Token && slices.Contains(kinds, call.Kind) {
				call.ignore()
			}
		}
	}
}

// ignore makes nobody wait for the answer to a call.
func (call *Call) ignore() {
	if call.Wanted = false; call.Answer != unanswered && call.Answer != queued {
		*call = Call{}
	}
}

// canonical makes states equal that differ only in what does not matter.
func (w *world) canonical() {
	w.sortClients()
	for n := range w.c.Nodes {
		node := &w.Nodes[n]
		for c := range node.Votes {
			v := &node.Votes[c]
			if v.Rest == 0 && !w.c.without(inDate|datedVotes|raisedWhileHeld) {
				v.Number, v.Young = 0, false
			}
			if w.Clients[c].Phase == trying && w.Clients[c].Rest == 0 {
				v.No = false
			}
		}
		for i := range node.Calls {
			node.trim(&node.Calls[i], w)
		}
		slices.SortFunc(node.Calls[:], func(a, b Call) int { return bytes.Compare(raw(&b), raw(&a)) })
		if w.Left[restarts] == 0 {
			node.Saved = Store{}
		}
		for _, holder := range []*token{&node.Holder, &node.Saved.Holder} {
			if t := *holder; t != 0 && t != ghost && w.dead(t) && !node.flies(t) {
				*holder = ghost
			}
		}
	}
	if !w.c.without(distinctNodes) {
		slices.SortFunc(w.Nodes[:w.c.Nodes], Node.compare)
	}
}

// sortClients gives the clients an order that does not depend on their names.
func (w *world) sortClients() {
	var keys [maxClients]uint64
	var order [maxClients]int
	for c := range maxClients {
		order[c] = c
		keys[c] = w.sign(c)
	}
	slices.SortStableFunc(order[:w.c.Clients], func(a, b int) int { return cmp.Compare(keys[b], keys[a]) })
	if slices.IsSorted(order[:]) {
		return
	}
	var renamed [maxClients*sessions + 1]token
	old := w.State
	for to, from := range order {
		w.Clients[to] = old.Clients[from]
		for n := range w.c.Nodes {
			w.Nodes[n].Votes[to] = old.Nodes[n].Votes[from]
		}
		for s := range token(sessions) {
			renamed[1+token(from)*sessions+s] = 1 + token(to)*sessions + s
		}
	}
	rename := func(t *token) {
		if *t != ghost {
			*t = renamed[*t]
		}
	}
	for c := range w.Clients {
		rename(&w.Clients[c].Token)
	}
	for n := range w.c.Nodes {
		node := &w.Nodes[n]
		rename(&node.Holder)
		rename(&node.Saved.Holder)
		for i := range node.Calls {
			rename(&node.Calls[i].Token)
		}
	}
}

// sign is a number for all that a client is and knows, which does not depend on its name.
func (w *world) sign(c int) uint64 {
	cl := w.Clients[c]
	cl.Name = 0
	if cl.Token != 0 {
		cl.Token = 1 + (cl.Token-1)%sessions
	}
	key := mix(0, raw(&cl))
	for n := range w.c.Nodes {
		node := &w.Nodes[n]
		k := mix(uint64(node.Rest), raw(&node.Votes[c]))
		if node.Holder != 0 && node.Holder != ghost && client(node.Holder) == c {
			k = ^k
		}
		for _, call := range node.Calls {
			if call.Kind != noCall && client(call.Token) == c {
				call.Token = (call.Token - 1) % sessions
				k += mix(k, raw(&call))
			}
		}
		key += k * k
	}
	return key
}

func mix(k uint64, bytes []byte) uint64 {
	for _, b := range bytes {
		k = (k ^ uint64(b)) * 0x100000001b3
	}
	return k
}

// trim clears what is of no use any more.
func (node *Node) trim(call *Call, w *world) {
	if call.Kind == noCall || call.Wanted {
		if call.Answer == no && call.Kind == vote || call.Kind == release {
			call.Age, call.Fresh = 0, false
		}
		return
	}
	call.Age, call.Stale = 0, false
	if w.c.Prompt && call.Kind == vote && (w.dead(call.Token) || w.Clients[client(call.Token)].Phase >= lapsed) {
		*call = Call{}
		return
	}
	if call.Kind != vote && node.Holder != call.Token && w.dead(call.Token) && !node.casts(call.Token) {
		*call = Call{}
	}
}

// dead reports whether a token is not used again.
func (w *world) dead(t token) bool { return w.Clients[client(t)].Token != t }

func (node *Node) flies(t token) bool {
	return slices.ContainsFunc(node.Calls[:], func(c Call) bool { return c.Token == t })
}

func (node *Node) casts(t token) bool {
	return slices.ContainsFunc(node.Calls[:], func(c Call) bool { return c.Token == t && c.Kind == vote })
}

func (node Node) compare(other Node) int {
	node.Name, other.Name = 0, 0
	return bytes.Compare(raw(&node), raw(&other))
}

func raw[T any](p *T) []byte { return unsafe.Slice((*byte)(unsafe.Pointer(p)), unsafe.Sizeof(*p)) }
