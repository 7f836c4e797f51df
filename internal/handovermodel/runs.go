package main

import "slices"

// The rules that can be taken out: those of the protocol, by their numbers, and below
// them what the model found missing.
const (
	checkInCreatesNothing = 1
	nothingIsShortened    = 2
	datedBySample         = 3
	hintBeforeSample      = 4
	lateIsTriedAgain      = 5
	tokensAreUsedOnce     = 6
	liveIsNotGivenBack    = 7
	deadIsGivenBack       = 8
	waitersCheckIn        = 9
	unknownEnqueues       = 10
	owedIsRepeated        = 15
	unknownForgetsClock   = 17 // "not queued" forgets the server's clock, so that a message is only a hint
	heldSettlesNoAttempt  = 18 // "held, now free" does not end the owed release of a token that was in several commands
	owedEndsWhenSent      = 19 // an owed release ends with the one that was sent when its time had run out
	enqueueIsAnswered     = 20 // a token whose enqueue got no answer is given up
	clockIsOfThisInbox    = 21 // an answer to a call from before the inbox has changed does not tell the clock
	changeComesFirst      = 22 // a wait notices that its inbox has changed before it reads a message
	fencesFollowTime      = 23 // they are not below the server's time
	passedOwesNothing     = 24 // a lease that was passed on to the next in line owes no release
	turnsShareDeadline    = 25 // the next in line has the deadline of the grant
	unsweptIsRepeated     = 26 // a release that has only removed dead waiters is repeated
	replicasHaveIt        = 27 // with replicas, a grant or a renewal counts when they have it
	hintForReplicas       = 28 // with replicas, the message of a handover is only a hint
	oldIsAHint            = 29 // a message that is older than the last answer is only a hint
	leaseIsCompared       = 30 // a resource compares the leases if the fences are equal
	nextChecksIn          = 31 // when the wait that checks in for its process has ended, the next one does
)

// small are the configurations that hold, and take seconds together.
func small() []*Config {
	return []*Config{
		base("two", 2).with(delay, 2),
		base("two, cancelled", 2).with(delay, 1, cancel, 1, dropRelease, 1),
		base("two, a message lost", 2).with(delay, 2, drop, 1),
		base("two, a crash", 2).with(delay, 1, crash, 1),
		base("two, a call without an answer", 2).with(timeout, 1).quick(),
		base("two, a subscription lost", 2).with(delay, 1, subLoss, 1).quick(),
		base("two, a lease passed on", 2).with(delay, 2, detach, 1),
		base("two, turns in a line", 2).with(delay, 1, turn, 2),
		base("two, inboxes opened late", 2).with(delay, 1).opensLate().quick(),
		base("two, one without an inbox", 2).with(delay, 2).unsubscribed(1),
		base("two, both without an inbox", 2).with(delay, 2).unsubscribed(2),
		base("three", 3).quick(),
		base("three, two of a process", 3).quick().together().after(aHolds),
		base("two, the dead swept", 2).with(delay, 1, crash, 1).sweeping(),
		base("three, the dead swept", 3).sweeping().quick().after(aHolds),
		base("two, all data lost", 2).with(wipe, 1).until(5).quick(),
		base("two, failover", 2).with(failover, 1).until(2).quick().skewed().after(bGranted[:7]),
		base("two, failover, replicated", 2).with(failover, 1).until(2).quick().skewed().replicated().after(aHoldsBWaits),
		base("two, two masters, replicated", 2).only(safety).with(split, 1).until(1).quick().replicated().after(aHoldsBWaits),
		base("two, two masters, a resource", 2).only(P5).with(split, 1).until(1).quick().resource().after(aHoldsSplit),
	}
}

// large are configurations that hold, and take up to minutes each.
func large() []*Config {
	return []*Config{
		base("two, a call without an answer", 2).with(timeout, 1),
		base("two, a subscription lost", 2).with(delay, 1, subLoss, 1),
		base("two, inboxes opened late", 2).with(delay, 1).opensLate(),
		base("three, the dead swept", 3).sweeping().quick(),
		base("two, failover, delay, after an enqueue", 2).with(delay, 1, failover, 1).until(3).quick().skewed().after(bGranted[:7]),
		base("two, a message and a subscription lost", 2).with(delay, 2, drop, 1, subLoss, 1),
		base("two, a cancellation and a lost message", 2).with(delay, 2, drop, 1, cancel, 1),
		base("two, without an inbox, a crash", 2).with(delay, 2, crash, 1, cancel, 1).unsubscribed(1),
		base("two, more delay", 2).with(delay, 5).quick(),
		base("three, delay", 3).with(delay, 1),
		base("three, the dead swept, a crash", 3).with(crash, 1).sweeping().quick(),
		base("three, the dead swept, delay", 3).with(delay, 1, crash, 1).sweeping().quick(),
		base("three, the dead swept, renewals", 3).with(crash, 1).sweeping(),
		base("three, a cancellation and a lost message", 3).with(cancel, 1, drop, 1).quick(),
		base("three, two of a process, a lost message", 3).with(drop, 1).quick().together(),
		base("three, two of a process, a cancellation", 3).with(cancel, 1).quick().together(),
		base("three, two of a process, the dead swept", 3).with(delay, 1).sweeping().quick().together().after(aHolds),
		base("three, two of a process, a subscription lost", 3).with(subLoss, 1).quick().together().after(aHolds),
		base("three, two of a process, a call without an answer", 3).with(timeout, 1).quick().together().after(aHolds),
		base("three, a crash", 3).with(delay, 1, crash, 1).quick(),
		base("three, one without an inbox", 3).with(delay, 1).unsubscribed(1),
		base("three, more delay", 3).with(delay, 2),
		base("three, delay, a cancellation and a lost message", 3).with(delay, 1, cancel, 1, drop, 1).quick(),
		base("three, a subscription lost", 3).with(delay, 1, subLoss, 1).quick(),
		base("three, inboxes opened late", 3).with(delay, 1).opensLate().quick(),
		base("three, a call without an answer", 3).with(timeout, 1).quick(),
		base("three, a lease passed on", 3).with(delay, 1, detach, 1).quick(),
		base("three, all data lost", 3).with(wipe, 1).until(4).quick(),
		base("two, all data lost", 2).with(delay, 2, wipe, 1, cancel, 1).until(5).quick(),
		base("two, failover", 2).with(failover, 1).until(5).quick().skewed(),
		base("two, failover, delay", 2).with(delay, 1, failover, 1).until(4).quick().skewed(),
		base("two, failover, replicated", 2).with(failover, 1).until(4).quick().skewed().replicated(),
		base("two, failover, replicated, delay", 2).with(delay, 1, failover, 1).until(3).quick().skewed().replicated(),
		base("two, failover, replicated, renewals", 2).with(failover, 1).until(4).skewed().replicated(),
		base("two, two masters, replicated", 2).only(safety).with(split, 2).until(3).quick().replicated().after(aHoldsCopied),
		base("two, two masters, a resource", 2).only(P5).with(split, 2).until(2).quick().resource(),
		base("two, a call without an answer, more delay", 2).with(delay, 2, timeout, 1),
		base("two, A twice, any call arbitrarily late", 2).with(delay, 1, timeout, 1).again().quick().late(),
		base("two, a call without an answer, a cancellation", 2).with(delay, 1, timeout, 1, cancel, 1).quick(),
		base("two, a call without an answer, a crash", 2).with(delay, 1, timeout, 1, crash, 1).quick(),
	}
}

// A Break is a rule taken out, and the property that breaks then.
type Break struct {
	Rule   int
	Config *Config
}

// How histories begin: A holds, B (or A again) waits, A hands over.
var (
	aHolds       = []string{"A begins", "server: try A1", "A reads the answer to try A1"}
	aHoldsCopied = slices.Insert(slices.Clone(aHolds), 2, "the replica catches up")
	aHoldsBWaits = slices.Concat(aHoldsCopied, bWaits)
	aHoldsSplit  = append(slices.Clone(aHolds), "the replica becomes the server, and the former one goes on")
	bWaits       = []string{"B begins", "server: try B1", "B reads the answer to try B1", "server: enqueue B1"}
	aWaits       = []string{"A begins", "server: try A2", "A reads the answer to try A2", "server: enqueue A2"}
	aHands       = []string{"A releases", "server: release A1"}
	bChecksIn    = []string{"B reads the answer to enqueue B1", "B checks in", "server: check-in B1", "B reads the answer to check-in B1"}
	bGranted     = slices.Concat(aHolds, bWaits, aHands)
	aGranted     = slices.Concat(aHolds, []string{"A releases"}, aWaits, []string{"server: release A1"})
)

// breaks are the rules taken out one at a time, in configurations that show soon what
// breaks.
func breaks() []Break {
	return []Break{
		{checkInCreatesNothing, base("a late check-in cuts a renewed lease", 2).only(P3)},
		{nothingIsShortened, base("a late enqueue cuts a lease", 2).only(P3).with(delay, 3).lacks(unknownForgetsClock).after(bGranted)},
		{datedBySample, base("a message is read late", 2).only(P1).with(delay, 2).again().quick()},
		{datedBySample, base("a message is read late", 2).only(P3).with(delay, 2)},
		{hintBeforeSample, base("a message is read late, before any answer", 2).only(P3).with(delay, 2)},
		{lateIsTriedAgain, base("a late grant is renewed", 2).only(P2).with(delay, 3).again().quick().lacks(oldIsAHint).after(aGranted)},
		{tokensAreUsedOnce, base("a token is used on after its release is owed", 2).only(P1).with(timeout, 1).quick()},
		{liveIsNotGivenBack, base("a grant was found by a check-in", 2).only(P3)},
		{liveIsNotGivenBack, base("a lease was passed on", 2).only(P3).with(detach, 1).after(slices.Concat(bGranted, bChecksIn, []string{"B passes"}))},
		{deadIsGivenBack, base("a cancelled wait is granted", 2).only(P4).with(cancel, 1, dropRelease, 1)},
		{waitersCheckIn, base("a message is lost", 2).only(P4).with(drop, 1)},
		{unknownEnqueues, base("a place is lost", 2).only(P4).with(delay, 2)},
		{owedIsRepeated, base("a release overtakes an attempt", 2).only(P4).with(cancel, 1)},
		{fencesFollowTime, base("all data lost", 2).only(P2).with(wipe, 1).until(3).quick()},
		{unknownForgetsClock, base("a grant is read while an enqueue is in flight", 2).only(P4).with(delay, 3).after(bGranted)},
		{heldSettlesNoAttempt, base("a release frees the grant of another attempt", 2).only(P4).with(delay, 3, cancel, 1)},
		{owedEndsWhenSent, base("the answer to a release is slow", 2).only(P4).with(delay, 3, cancel, 1)},
		{enqueueIsAnswered, base("one of two enqueues is slow", 2).only(P4).with(delay, 2, timeout, 1).after(bGranted[:len(bGranted)-1])},
		{clockIsOfThisInbox, base("an old server's clock, read late", 2).only(P3).with(delay, 2, failover, 1).until(4).quick().skewed().after(bGranted[:7])},
		{changeComesFirst, base("an old server's clock, kept", 2).only(P3).with(delay, 2, failover, 1).until(4).quick().skewed().after(bGranted[:7])},
		{passedOwesNothing, base("a lease was passed on in a line", 2).only(P3).with(turn, 1)},
		{unsweptIsRepeated, base("a dead waiter is in the queue", 3).only(P4).with(crash, 1).sweeping().quick()},
		{replicasHaveIt, base("a replica without the grant becomes the server", 2).only(P1).with(failover, 1).until(4).quick().replicated()},
		{hintForReplicas, base("a replica without the handover becomes the server", 2).only(P3).with(failover, 1).until(4).quick().replicated()},
		{replicasHaveIt, base("two masters grant the lock", 2).only(P1).with(split, 1).until(1).quick().replicated()},
		{replicasHaveIt, base("two masters make the same fence", 2).only(P2).with(split, 1).until(1).quick().replicated()},
		{leaseIsCompared, base("a resource compares only fences", 2).only(P5).with(split, 1).until(1).quick().resource()},
		{nextChecksIn, base("a message to the next is lost", 3).only(P4).with(drop, 1).quick().together()},
		{turnsShareDeadline, base("a lease was passed on late", 2).only(P3).with(delay, 1, turn, 1)},
	}
}

// with sets how many faults there are of some kinds: a kind, a number, and so on.
func (c *Config) with(faults ...fault) *Config {
	for pair := range slices.Chunk(faults, 2) {
		c.Faults[pair[0]] = uint8(pair[1])
	}
	return c
}

func (c *Config) only(p Properties) *Config     { c.Check = p; return c }
func (c *Config) skewed() *Config               { c.Skew = 1; return c }
func (c *Config) together() *Config             { c.Together = true; return c }
func (c *Config) opensLate() *Config            { c.OpensLate = true; return c }
func (c *Config) unsubscribed(n int) *Config    { c.Unsubscribed = n; return c }
func (c *Config) quick() *Config                { c.NoRenew = true; return c }
func (c *Config) sweeping() *Config             { c.Silent, c.Sweep = 2, 1; return c }
func (c *Config) replicated() *Config           { c.Replicated = true; return c }
func (c *Config) resource() *Config             { c.Resource = true; return c }
func (c *Config) late() *Config                 { c.Prompt, c.Check = false, safety; return c }
func (c *Config) again() *Config                { c.Acquire[0] = 2; return c }
func (c *Config) until(tick int) *Config        { c.LastTick = tick; return c }
func (c *Config) after(events []string) *Config { c.Begin = events; return c }

func (c *Config) lacks(rules ...int) *Config {
	for _, n := range rules {
		c.Without |= 1 << n
	}
	return c
}
