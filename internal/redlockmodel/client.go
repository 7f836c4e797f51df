package main

// begin is an acquisition with a new token: a vote is asked of all nodes.
func (w *world) begin(c int) {
	cl := &w.Clients[c]
	cl.More--
	cl.Token = token(1 + c*sessions + int(cl.More))
	w.attempt(c)
}

// attempt asks all nodes where nothing of the client is in flight.
func (w *world) attempt(c int) {
	w.Clients[c].Phase = trying
	w.forget(c)
	for n := range w.c.Nodes {
		if w.mayAsk(c, n) {
			w.send(n, Call{Kind: vote, Token: w.Clients[c].Token})
		}
	}
}

// forget forgets the votes of a client, but not where its token is spoiled.
func (w *world) forget(c int) {
	w.Clients[c].Fixed = 0
	for n := range w.c.Nodes {
		v := &w.Nodes[n].Votes[c]
		*v = Vote{Spoiled: v.Spoiled}
	}
}

// mayAsk reports whether a client may ask a node for its vote.
func (w *world) mayAsk(c, n int) bool {
	if w.inFlight(c, n, vote) || w.inFlight(c, n, confirm) {
		return false
	}
	return w.c.without(answeredReleases) || !w.inFlight(c, n, release)
}

// take acts on the answer to a call that somebody waits for.
func (w *world) take(n int, call Call) {
	c := client(call.Token)
	switch {
	case call.Kind == release && w.Clients[c].Phase == trying:
		if w.c.without(sentReleases) {
			w.Nodes[n].Votes[c] = Vote{Spoiled: w.Nodes[n].Votes[c].Spoiled}
		}
	case call.Kind == release:
	case w.Clients[c].Phase == trying:
		w.voted(c, &w.Nodes[n].Votes[c], call)
		w.decide(c)
	default:
		w.renewed(c, n, call)
	}
}

// voted is an answer in an attempt.
func (w *world) voted(c int, v *Vote, call Call) {
	rest := w.c.rest(call)
	if call.Kind == vote && (call.Answer == no || call.Fresh) && (!call.Young || w.c.without(youngNos)) {
		v.No = w.Clients[c].Rest > 0 // else it does not matter
	}
	switch {
	case v.Spoiled && !w.c.without(spoiledTokens):
	case call.Young && call.Kind == vote:
		if call.Answer == yes && (v.Young || v.Rest == 0) {
			*v = Vote{Rest: rest, Number: call.Fence, Young: true, Fresh: v.Fresh || call.Fresh, No: v.No, Spoiled: v.Spoiled}
		}
	case call.Young:
	case call.Kind == vote && call.Answer == yes:
		*v = Vote{Rest: rest, Number: call.Fence, Fresh: v.Fresh || call.Fresh, No: v.No, Spoiled: v.Spoiled}
	case call.Answer == yes:
		if v.Rest > 0 || w.c.without(datedVotes) {
			v.Rest, v.Number, v.Young = max(v.Rest, rest), max(v.Number, call.Fence), false
		}
	case call.Kind == confirm && w.c.without(raisedWhileHeld):
		v.Number = max(v.Number, call.Fence)
	default:
		*v = Vote{No: v.No, Spoiled: v.Spoiled}
	}
}

// decide ends an attempt if a majority has voted for it under one fence. Otherwise it raises the
// counters of those that have voted.
func (w *world) decide(c int) {
	cl := &w.Clients[c]
	votes, fence := 0, uint8(0)
	for n := range w.c.Nodes {
		if v := &w.Nodes[n].Votes[c]; w.counts(v) {
			votes++
			fence = max(fence, v.Number)
		}
	}
	if votes < w.c.quorum() {
		return
	}
	if w.c.without(newMaximum) {
		if cl.Fixed == 0 {
			cl.Fixed = fence
		}
		fence = cl.Fixed
	}
	needed := fence
	if w.c.without(raisedFences) {
		needed = 0
	}
	raised := 0
	for n := range w.c.Nodes {
		if w.Nodes[n].Votes[c].Number >= needed {
			raised++
		}
	}
	held := !w.c.without(raisedWhileHeld)
	rest, ok := w.majority(c, func(v *Vote) bool { return w.counts(v) && (v.Number >= needed || !held) })
	if ok && rest > 0 && raised >= w.c.quorum() {
		w.hold(c, fence, rest)
		return
	}
	for n := range w.c.Nodes {
		if v := &w.Nodes[n].Votes[c]; (w.counts(v) || !held) && v.Number < needed && w.idle(c, n) {
			w.send(n, Call{Kind: confirm, Token: cl.Token, Fence: fence})
		}
	}
}

// counts reports whether a vote is one of a majority.
func (w *world) counts(v *Vote) bool {
	return !v.Young && v.Number > 0 && (v.Rest > 0 || w.c.without(inDate))
}

// majority returns for how long the votes of a majority count: as long as the quorum's last.
func (w *world) majority(c int, counts func(*Vote) bool) (rest uint8, ok bool) {
	votes := 0
	var longer [maxTTL + 1]int // how many votes count for so long
	for n := range w.c.Nodes {
		if v := &w.Nodes[n].Votes[c]; counts(v) {
			votes++
			for r := range v.Rest {
				longer[r+1]++
			}
		}
	}
	if votes < w.c.quorum() {
		return 0, false
	}
	needed := w.c.quorum()
	if w.c.without(datedByQuorum) {
		needed = 1
	}
	if w.c.without(inDate) {
		needed -= votes - longer[1]
	}
	for rest < maxTTL && longer[rest+1] >= max(needed, 1) {
		rest++
	}
	return rest, true
}

// hold begins a lease.
func (w *world) hold(c int, fence, rest uint8) {
	cl := &w.Clients[c]
	cl.Phase, cl.Fence, cl.Rest = holding, fence, rest
	w.certain()
	if fence <= w.Certain {
		w.breaks(p2, "a lease begins under a fence that is not above that of one before")
	}
	w.Certain = max(w.Certain, fence)
	w.forget(c)
	w.unwant(c, vote, confirm)
}

// certain looks whether two are.
func (w *world) certain() {
	n := 0
	for c := range w.Clients {
		if w.Clients[c].Rest > 0 {
			n++
		}
	}
	if n > 1 {
		w.breaks(p1, "two are certain to hold the lock")
	}
}

// renew asks all nodes to renew a lease, as does who adopts it.
func (w *world) renew(c int) {
	w.forget(c)
	for n := range w.c.Nodes {
		if w.idle(c, n) {
			w.send(n, Call{Kind: confirm, Token: w.Clients[c].Token})
		}
	}
}

// renewed is an answer to a renewal, or to the vote that heals a node.
func (w *world) renewed(c, n int, call Call) {
	cl, v := &w.Clients[c], &w.Nodes[n].Votes[c]
	switch {
	case call.Young || call.Kind == vote && !w.c.without(healsDoNotCount):
		return
	case call.Answer == yes:
		v.Rest, v.No = w.c.rest(call), false
	default:
		v.Rest, v.No = 0, true
		if w.c.without(healsDoNotCount) && call.Kind == confirm {
			w.heal(c, n)
			return
		}
	}
	nos := 0
	for n := range w.c.Nodes {
		if w.Nodes[n].Votes[c].No {
			nos++
		}
	}
	rest, ok := w.majority(c, func(v *Vote) bool { return v.Rest > 0 })
	switch {
	case ok:
		cl.Phase, cl.Rest = holding, max(cl.Rest, rest)
		w.certain()
		if cl.Fence < w.Certain {
			w.breaks(p2, "a lease is adopted after one with a larger fence")
		}
	case nos > w.c.Nodes-w.c.quorum():
		w.stop(c)
	}
}

// heal asks a node that lacked a lease for its vote.
func (w *world) heal(c, n int) {
	w.Nodes[n].Votes[c].No = false
	w.send(n, Call{Kind: vote, Token: w.Clients[c].Token})
}

// giveBack releases what an attempt may have on a node. What was asked before does not count.
func (w *world) giveBack(c, n int) {
	node := &w.Nodes[n]
	v := &node.Votes[c]
	for i := range node.Calls {
		call := &node.Calls[i]
		if call.Kind == noCall || call.Token != w.Clients[c].Token || call.Kind == release || !call.Wanted {
			continue
		}
		if call.Stale = true; !w.c.without(oldVotes) && call.Kind == vote || !w.c.without(oldConfirms) && call.Kind == confirm {
			call.ignore()
		}
	}
	if !w.c.without(sentReleases) {
		*v = Vote{No: v.No, Spoiled: v.Spoiled}
	}
	w.send(n, Call{Kind: release, Token: w.Clients[c].Token})
}

// owns reports whether an attempt may release a vote: it was cast by this attempt, or no lease
// depends on it. A client need not know that it holds: so many nodes say that the token does not that
// the others are no majority.
func (w *world) owns(c, n int) bool {
	if w.Clients[c].Rest == 0 || w.Nodes[n].Votes[c].Fresh || w.c.without(freshOnly) {
		return true
	}
	others := 0
	for n := range w.c.Nodes {
		if !w.Nodes[n].Votes[c].No {
			others++
		}
	}
	return others < w.c.quorum()
}

// quit ends an attempt. If it was that of a holder, the lease goes on. Nodes that owe nothing may be spared.
func (w *world) quit(c int, spares bool) {
	for n := range w.c.Nodes {
		if w.owns(c, n) && !w.inFlight(c, n, release) && !(spares && w.owesNothing(c, n)) {
			w.giveBack(c, n)
		}
	}
	if w.Clients[c].Rest == 0 {
		w.stop(c)
		return
	}
	w.Clients[c].Phase = holding
	w.forget(c)
	w.unwant(c, vote, confirm)
}

// owesNothing reports whether a node does not hold the token of a client, and has answered all its calls. One that arrives
// twice may still be on its way.
func (w *world) owesNothing(c, n int) bool {
	return w.Nodes[n].Holder != w.Clients[c].Token && !w.inFlight(c, n, vote)
}

// end releases a lease.
func (w *world) end(c int) {
	for n := range w.c.Nodes {
		w.send(n, Call{Kind: release, Token: w.Clients[c].Token})
	}
	w.stop(c)
}

// stop ends an acquisition. Its token is not used again.
func (w *world) stop(c int) {
	w.unwant(c, vote, confirm, release)
	cl := &w.Clients[c]
	*cl = Client{More: cl.More, Name: cl.Name}
	for n := range w.c.Nodes {
		w.Nodes[n].Votes[c] = Vote{}
	}
}

// fail is what a client does when a call gets no answer.
func (w *world) fail(n int, call Call) {
	if c := client(call.Token); call.Kind == release {
		w.Nodes[n].Votes[c].Spoiled = true
	}
}
