package main

// What follows is the core (acquire.go, lease.go, renew.go, release.go) with the
// Locker of rediscore (wait.go, delivery.go, token.go, inbox.go).

// begin is Acquire of a Client: an attempt without waiting comes first.
func (w *world) begin(c int) {
	cl := &w.Clients[c]
	cl.More--
	if t := w.fresh(c); t != 0 {
		cl.Token, cl.Phase = t, trying
		w.call(Call{Script: tryScript, Token: t, Wanted: true})
	}
}

// fresh returns a token that nothing refers to.
func (w *world) fresh(c int) token {
	used := w.used()
	for i := range w.c.Tokens {
		if t := token(1 + c*w.c.Tokens + i); !used[t] {
			return t
		}
	}
	w.full = true
	return 0
}

// wait is Acquire of the Locker.
func (w *world) wait(c int) {
	cl := &w.Clients[c]
	cl.Phase = waiting
	w.clear(c)
	r := &w.Tokens[cl.Token-1]
	r.Known, r.Gone = true, false
	w.send(c)
}

// send checks in, or goes (back) into the queue.
func (w *world) send(c int) {
	cl := &w.Clients[c]
	if cl.Calling {
		cl.Again = true
		return
	}
	cl.Calling, cl.Again, cl.Early = true, false, Message{}
	call := Call{Script: enqueueScript, Token: cl.Token, Ticket: cl.Ticket, Inbox: w.Clients[w.c.process(c)].Live, Wanted: true}
	if cl.Queued {
		call.Script, call.Ticket = checkInScript, 0
	}
	w.call(call)
}

// checksIn reports whether a wait checks in when time has passed. Those of a process rest in a room, but for the
// one with the smallest ticket.
func (w *world) checksIn(c int) bool {
	if w.c.without(nextChecksIn) {
		return w.c.process(c) == c
	}
	cl := &w.Clients[c]
	if !w.Clients[w.c.process(c)].Live || !cl.Queued {
		return true
	}
	for i := range w.c.Clients {
		other := &w.Clients[i]
		if w.c.process(i) == w.c.process(c) && other.Phase == waiting && other.Ticket != 0 && other.Ticket < cl.Ticket {
			return false
		}
	}
	return true
}

// take acts on the answer to a call that somebody waits for.
func (w *world) take(a Call) {
	c := w.c.client(a.Token)
	switch a.Script {
	case tryScript:
		w.tried(c, a)
	case enqueueScript, checkInScript:
		w.answered(c, a)
	case renewScript:
		w.renewed(c, a)
	case releaseScript:
		w.releasedOwed(a.Token, a.Answer == answerHeld, a.Last)
	}
}

// tried is the end of an attempt without waiting.
func (w *world) tried(c int, a Call) {
	cl := &w.Clients[c]
	rest := w.c.TTL - int(a.Age)
	switch {
	case a.Answer == answerGranted && rest > 0:
		w.hold(c, rest, a.Fence)
	case a.Answer == answerGranted && cl.Phase == trying:
		w.late(c, a.Fence)
	case cl.Phase == trying:
		w.wait(c)
	default:
		w.giveUp(c)
		w.again(c)
	}
}

// answered is take of a wait.
func (w *world) answered(c int, a Call) {
	cl := &w.Clients[c]
	cl.Calling = false
	switch a.Answer {
	case answerGranted:
		w.granted(c, w.c.FirstTTL-int(a.Age), a.Fence)
	case answerFound:
		w.granted(c, w.c.FirstTTL-int(a.Age)-int(a.Granted), a.Fence)
	case answerUnknown:
		if w.c.without(unknownEnqueues) {
			return
		}
		first := w.checksIn(c)
		cl.Queued = false
		if !w.c.without(unknownForgetsClock) {
			cl.Clock, cl.Term = 0, 0
		}
		w.send(c)
		for i := range w.c.Clients { // they may not be in the queue either
			if first && i != c && w.c.process(i) == w.c.process(c) && w.Clients[i].Phase == waiting {
				w.send(i)
			}
		}
	case answerWaits:
		for i := range w.Msgs {
			w.Msgs[i].Old = w.Msgs[i].Old || w.Msgs[i].Past && w.Msgs[i].Token == a.Token
		}
		cl.Queued, cl.Ticket = true, a.Ticket
		cl.Clock, cl.Term = 1+min(a.Delay, uint8(w.c.FirstTTL)), a.Term
		if a.Stale && !w.c.without(clockIsOfThisInbox) {
			cl.Clock, cl.Term = 0, 0
		}
		if m := cl.Early; m.Token != 0 && cl.Clock != 0 {
			w.granted(c, w.dated(c, m), m.Fence)
			return
		}
		if cl.Again {
			w.send(c)
		}
	}
}

// hears is what a wait does with a message.
func (w *world) hears(c int, m Message) {
	cl := &w.Clients[c]
	if cl.Changed && !w.c.without(changeComesFirst) {
		w.forgetClock(c)
	}
	switch {
	case w.c.Replicated && !w.c.without(hintForReplicas):
		w.send(c)
	case w.c.without(datedBySample) || cl.Clock == 0 && w.c.without(hintBeforeSample):
		w.granted(c, w.c.FirstTTL, m.Fence)
	case cl.Clock != 0 && (!m.Old || w.c.without(oldIsAHint)):
		w.granted(c, w.dated(c, m), m.Fence)
	default:
		if cl.Calling && !cl.Again && !m.Past {
			cl.Early = m
		}
		w.send(c)
	}
}

// dated is the remaining time of a grant, by the server's clock.
func (w *world) dated(c int, m Message) int {
	cl := &w.Clients[c]
	rest := w.c.FirstTTL - int(m.Age) - (int(cl.Clock) - 1) + w.c.Skew*(int(m.Term)-int(cl.Term))
	if rest > w.c.FirstTTL {
		return 0 // the core does not believe in a grant of the future
	}
	return rest
}

// granted ends a wait. A grant that is found late is tried again with the same token.
func (w *world) granted(c int, rest int, fence uint8) {
	w.unwant(w.Clients[c].Token)
	if rest > 0 {
		w.hold(c, rest, fence)
	} else {
		w.late(c, fence)
	}
}

func (w *world) late(c int, fence uint8) {
	cl := &w.Clients[c]
	w.clear(c)
	cl.Phase = retry
	call := Call{Script: tryScript, Token: cl.Token, Wanted: true}
	if w.c.without(lateIsTriedAgain) {
		call.Script, cl.Fence = renewScript, fence
	}
	w.call(call)
}

// clear forgets what belongs to a phase.
func (w *world) clear(c int) {
	cl := &w.Clients[c]
	cl.Queued, cl.Calling, cl.Again, cl.Ticket, cl.Clock, cl.Term = false, false, false, 0, 0, 0
	cl.Changed, cl.Early, cl.Fence, cl.Rest = false, Message{}, 0, 0
}

// hold begins a lease.
func (w *world) hold(c int, rest int, fence uint8) {
	w.clear(c)
	cl := &w.Clients[c]
	cl.Phase, cl.Rest, cl.Fence = holding, uint8(rest), fence
	if fence > w.Lost || w.c.Replicated {
		switch {
		case fence < w.Certain:
			w.breaks(P2, "a lease begins under a fence that is below that of one before")
		case fence == w.Certain:
			w.breaks(P2, "a lease begins under the fence of one before")
		}
		w.Certain = max(w.Certain, fence)
	}
}

// write lets the holder of a lease write to a resource, which takes the write if the fence is above
// that of the last, or if both are of the same lease.
func (w *world) write(cl *Client) {
	last := w.Written
	if cl.Fence < last.Fence || cl.Fence == last.Fence && cl.Token != last.Token && !w.c.without(leaseIsCompared) {
		return
	}
	if w.Passed&(1<<(cl.Token-1)) != 0 {
		w.breaks(P5, "a resource takes a write of a lease after that of another")
	}
	if last.Token != 0 && last.Token != cl.Token {
		w.Passed |= 1 << (last.Token - 1)
	}
	w.Written = Away{Token: cl.Token, Fence: cl.Fence}
}

func (w *world) breaks(p Properties, why string) {
	if w.broken == 0 && p&w.c.Check != 0 {
		w.broken, w.why = p, why
	}
}

func (w *world) sendRenewal(c int) {
	cl := &w.Clients[c]
	cl.Calling = true
	w.call(Call{Script: renewScript, Token: cl.Token, Wanted: true})
}

func (w *world) renewed(c int, a Call) {
	cl := &w.Clients[c]
	rest := w.c.TTL - int(a.Age)
	if cl.Phase == retry { // without rule 5
		if a.Answer == answerHeld && rest > 0 {
			w.hold(c, rest, cl.Fence)
			return
		}
		w.giveUp(c)
		w.again(c)
		return
	}
	cl.Calling = false
	if a.Answer != answerHeld {
		w.stop(c)
		return
	}
	cl.Rest = uint8(max(int(cl.Rest), rest))
}

// expire ends a lease on its deadline: a release is owed.
func (w *world) expire(c int) {
	w.owe(w.Clients[c].Token, leaseOwed)
	w.stop(c)
}

// endLease is Release of a lease.
func (w *world) endLease(c int) {
	t := w.Clients[c].Token
	w.owe(t, leaseOwed)
	w.stop(c)
	w.retryRelease(t)
}

// passOn ends a lease, whose token and deadline the next in line has from now on. (Its errand
// for the turn after that is another client here.)
func (w *world) passOn(c int) {
	cl := &w.Clients[c]
	if w.c.without(passedOwesNothing) {
		w.owe(cl.Token, leaseOwed)
	}
	if w.c.without(turnsShareDeadline) {
		cl.Rest = uint8(w.c.FirstTTL)
	}
}

// stop ends an acquisition.
func (w *world) stop(c int) {
	cl := &w.Clients[c]
	w.unwant(cl.Token)
	w.clear(c)
	cl.Phase, cl.Token = idle, 0
}

// giveUp owes a release of the token of an acquisition.
func (w *world) giveUp(c int) {
	cl := &w.Clients[c]
	w.unwant(cl.Token)
	if cl.Phase == trying || w.c.without(heldSettlesNoAttempt) {
		w.owe(cl.Token, attemptOwed)
	} else {
		w.owe(cl.Token, attemptsOwed)
	}
}

// again goes on waiting, with a new token.
func (w *world) again(c int) {
	cl := &w.Clients[c]
	w.clear(c)
	if !w.c.without(tokensAreUsedOnce) {
		if cl.Token = w.fresh(c); cl.Token == 0 {
			return
		}
	}
	w.wait(c)
}

// cancel ends an acquisition that waits.
func (w *world) cancel(c int) {
	t := w.Clients[c].Token
	w.giveUp(c)
	if r := &w.Tokens[t-1]; r.Known {
		r.Gone = true
	}
	w.stop(c)
}

// fail is what a client does when a call gets no answer.
func (w *world) fail(a Call) {
	c := w.c.client(a.Token)
	cl := &w.Clients[c]
	switch a.Script {
	case releaseScript:
		if r := &w.Tokens[a.Token-1]; a.Last || w.c.without(owedEndsWhenSent) && r.Until == 0 {
			r.Owed = nothingOwed
		}
	case renewScript:
		if cl.Phase == holding {
			cl.Calling = false
			return
		}
		w.leave(c)
	case tryScript:
		w.leave(c)
	default:
		if cl.Calling = false; cl.Ticket == 0 || !w.c.without(enqueueIsAnswered) && !cl.Queued {
			w.leave(c)
		}
	}
}

// leave gives a token up and goes on with a new one.
func (w *world) leave(c int) {
	w.giveUp(c)
	if r := &w.Tokens[w.Clients[c].Token-1]; r.Known {
		r.Gone = true
	}
	w.again(c)
}

func (w *world) owe(t token, d owed) {
	if w.c.without(owedIsRepeated) {
		d = leaseOwed
	}
	w.Tokens[t-1].Owed, w.Tokens[t-1].Until = d, uint8(w.c.TTL)
}

// retryRelease sends an owed release once more.
func (w *world) retryRelease(t token) {
	if r := &w.Tokens[t-1]; r.Known {
		r.Gone = true
	}
	w.call(Call{Script: releaseScript, Token: t, Wanted: true, Last: !w.c.without(owedEndsWhenSent) && w.Tokens[t-1].Until == 0})
}

func (w *world) releasedOwed(t token, held, last bool) {
	r := &w.Tokens[t-1]
	if w.c.without(owedEndsWhenSent) {
		last = r.Until == 0
	}
	if held && r.Owed != attemptsOwed || r.Owed == leaseOwed || last {
		r.Owed, r.Until = nothingOwed, 0
	}
}

// deliver passes a message to the inbox.
func (w *world) deliver(m Message) {
	c := w.c.client(m.Token)
	cl, r := &w.Clients[c], &w.Tokens[m.Token-1]
	waits := cl.Phase == waiting && cl.Token == m.Token
	switch {
	case cl.Phase == crashed || !r.Known:
	case waits:
		w.hears(c, m)
	case r.Gone && !w.c.without(deadIsGivenBack), w.c.without(liveIsNotGivenBack):
		w.call(Call{Script: releaseScript, Token: m.Token})
	}
}

// changes is what happens in a client when its inbox is opened or lost.
func (w *world) changes(c int, live bool) {
	w.Clients[c].Live = live
	for i := range w.c.Clients {
		if w.c.process(i) == c && w.Clients[i].Phase == waiting {
			w.change(i)
		}
	}
}

func (w *world) change(c int) {
	cl := &w.Clients[c]
	cl.Changed = true
	for i := range w.Calls {
		if call := &w.Calls[i]; call.Token == cl.Token && call.Script != releaseScript && call.Wanted {
			call.Stale = true
		}
	}
}

// notices is what a wait does then.
func (w *world) notices(c int) {
	w.forgetClock(c)
	w.send(c)
}

func (w *world) forgetClock(c int) {
	cl := &w.Clients[c]
	cl.Clock, cl.Term, cl.Changed, cl.Early = 0, 0, false, Message{}
}
