package main

import "slices"

// small are the configurations that hold, and take seconds together.
func small() []*Config {
	return []*Config{
		base("two", 3, 2),
		base("two, unequal counters", 3, 2).counters(0, 1).with(ticks, 1),
		base("two, A twice", 3, 2).acquires(2, 1).with(ticks, 0),
		base("two, late votes", 3, 2).with(ticks, 2).late(),
		base("two, a call late", 3, 2).with(ticks, 1, delays, 1),
		base("two, asking again", 3, 2).with(ticks, 0, rounds, 1),
		base("two, a repeat", 3, 2).with(ticks, 0, repeats, 1, quits, 1),
		base("two, given up", 3, 2).with(ticks, 1, quits, 1).late(),
		base("two, given up, a call twice", 3, 2).with(ticks, 0, quits, 1, doubles, 1).late(),
		base("two, a renewal", 3, 2).with(ticks, 2, renewals, 1).after(gets("A1", "1", "2")),
		base("two, an adoption", 3, 2).with(ticks, 2, adoptions, 1).after(gets("A1", "1", "2")),
		base("two, a node emptied", 3, 2).with(ticks, 3, wipes, 1).after(gets("A1", "1", "2")),
		base("two, a node started again", 3, 2).with(ticks, 1, restarts, 1).after(gets("A1", "1", "2")),
		base("two, a fast clock", 3, 2).ttl(3).with(ticks, 1, drifts, 1),
		base("two, queues", 3, 2).with(ticks, 2).queues(),
		base("three", 3, 3).with(ticks, 0),
		base("four nodes", 4, 2).with(ticks, 0),
	}
}

// large are configurations that hold, and take minutes each.
func large() []*Config {
	return []*Config{
		base("two, unequal counters", 3, 2).counters(0, 1, 4),
		base("two, A twice", 3, 2).acquires(2, 1).with(ticks, 2),
		base("two, asking again", 3, 2).with(rounds, 1),
		base("two, asking again and again", 3, 2).with(ticks, 0, rounds, 2),
		base("two, asking again, unequal counters", 3, 2).counters(0, 1).with(ticks, 1, rounds, 2),
		base("two, asking again, a call late", 3, 2).with(ticks, 1, rounds, 2, delays, 1),
		base("two, asking again, a call twice", 3, 2).with(ticks, 1, rounds, 1, doubles, 1),
		base("two, a repeat", 3, 2).with(ticks, 3, repeats, 1, quits, 1),
		base("two, a repeat, a node emptied", 3, 2).with(ticks, 1, wipes, 1, repeats, 1, quits, 1).after(gets("A1", "1", "2")),
		base("two, given up, a call twice", 3, 2).with(ticks, 1, quits, 1, doubles, 1).late(),
		base("two, given up, a node started again", 3, 2).with(ticks, 1, quits, 1, restarts, 1).late(),
		base("two, a renewal", 3, 2).with(ticks, 3, renewals, 1),
		base("two, an adoption", 3, 2).with(ticks, 4, adoptions, 1),
		base("two, a node emptied", 3, 2).with(ticks, 3, wipes, 1),
		base("two, a node emptied, asking again", 3, 2).with(ticks, 3, wipes, 1, rounds, 1).after(gets("A1", "1", "2")),
		base("two, a node started again", 3, 2).with(ticks, 2, restarts, 1),
		base("two, a node started again, asking again", 3, 2).with(ticks, 2, restarts, 1, rounds, 1).after(gets("A1", "1", "2")),
		base("two, nodes emptied, a renewal", 3, 2).with(ticks, 3, wipes, 2, renewals, 1).after(gets("A1", "1", "2")),
		base("two, a fast clock", 3, 2).ttl(3).with(drifts, 1),
		base("two, queues, asking again", 3, 2).with(ticks, 2, rounds, 1).queues(),
		base("three", 3, 3).with(ticks, 1),
		base("four nodes", 4, 2).with(ticks, 2),
		base("five nodes", 5, 2).with(ticks, 0),
	}
}

// walks are those in which everything happens, and which are too large to be searched.
func walks() []*Config {
	every := func(name string, nodes, clients int) *Config {
		return base(name, nodes, clients).acquires(2, 2, 2).counters(0, 1, 4).ttl(3).late().
			with(rounds, 4, losses, 1, delays, 1, doubles, 1, renewals, 2, repeats, 1, quits, 2)
	}
	return []*Config{
		every("three nodes, three clients", 3, 3).with(wipes, 2, restarts, 1, drifts, 1),
		every("three nodes, two clients", 3, 2).ttl(2),
		every("three nodes, queues", 3, 3).with(wipes, 1).queues(),
		every("five nodes", 5, 2).with(wipes, 1).ttl(2),
	}
}

// How histories begin: who is granted a vote and has read it, who is certain.
func has(client, node string) []string {
	return []string{"node " + node + ": vote " + client, client[:1] + " reads from node " + node + ": vote " + client}
}

func gets(client, one, other string) []string {
	return slices.Concat([]string{client[:1] + " begins"}, has(client, one), has(client, other))
}

func then(begin []string, events ...string) []string { return slices.Concat(begin, events) }

// breaks are the rules taken out one at a time, in configurations that show soon what breaks.
func breaks() []*Config {
	aVoted := then([]string{"A begins"}, has("A1", "1")...)
	aGives := then(aVoted, "A gives its vote back to node 1")
	aYields := slices.Concat(aVoted, has("A1", "2"), []string{"A gives its vote back to node 2", "node 2: release"})
	expired := slices.Concat([]string{"A begins", "node 1: vote A1: twice"}, has("A1", "1"), []string{"time", "time"},
		gets("B1", "1", "3"), []string{"B releases", "node 1: release B1"})
	stopped := slices.Concat(aVoted, []string{"time"}, has("A1", "2"), []string{"time"}, gets("B1", "1", "3"), []string{"B releases"})
	return []*Config{
		base("half of the nodes are a majority", 4, 2).with(ticks, 0).lacks(majorities, p1, 10),
		base("two nodes are one store, and a vote is given back to one", 3, 2).with(rounds, 1, ticks, 0).after(aVoted).lacks(distinctNodes, p1, 14),
		base("a lease is dated by its latest vote", 3, 2).counters(0, 1).with(ticks, 2).after(then(aVoted, "node 2: vote A1", "time")).lacks(datedByQuorum, p1, 16),
		base("a node's clock is fast", 3, 2).ttl(3).with(ticks, 2, drifts, 1).after([]string{"A begins", "node 1: vote A1", "time", "time"}).lacks(clocksDrift, p1, 15),
		base("a vote overtakes a release", 3, 2).with(ticks, 0, rounds, 2).after(aGives).lacks(answeredReleases, p1, 19),
		base("a vote was given back before its answer", 3, 2).with(ticks, 0, rounds, 1).lacks(oldVotes, p1, 14),
		base("a release is late", 3, 2).with(ticks, 0, rounds, 2, delays, 1).after(then(aGives, "node 1: release A1: no answer yet")).lacks(spoiledTokens, p1, 20),
		base("a vote was given back before it was confirmed", 3, 2).counters(0, 1).with(ticks, 0, rounds, 1).lacks(oldConfirms|datedVotes, p1, 16),
		base("a release is in flight", 3, 2).with(ticks, 0, rounds, 1).lacks(sentReleases, p1, 14),
		base("a holder repeats its attempt, and ends it", 3, 2).with(ticks, 0, repeats, 1, quits, 1).lacks(freshOnly, p1, 14),
		base("a holder repeats its attempt at a node that was emptied", 3, 2).with(ticks, 0, wipes, 1, repeats, 1, quits, 1).after(then(gets("A1", "1", "2"), "B begins", "node 2 loses")).lacks(youngNos, p1, 19),
		base("a node is emptied", 3, 2).with(ticks, 1, wipes, 1).lacks(youngVotes, p1, 13),
		base("a vote of an emptied node is kept", 3, 2).with(ticks, 1, wipes, 1, rounds, 1).after(slices.Concat(gets("B1", "1", "2"), []string{"A begins"}, has("A1", "3"))).lacks(youngRenewals, p1, 16),
		base("a dead lease is adopted after another", 3, 2).with(ticks, 2, adoptions, 1).after(gets("A1", "1", "2")).lacks(healsDoNotCount, p2, 22),
		base("a vote expires and is cast again", 3, 2).counters(0, 0, 1).with(ticks, 2, rounds, 2, doubles, 1).after(expired).lacks(datedVotes, p2, 22),
		base("a fence is the maximum of a majority", 3, 2).counters(0, 0, 1).with(ticks, 0).lacks(raisedFences, p2, 12),
		base("a counter is raised where the token does not hold", 3, 2).counters(0, 0, 2).with(ticks, 0).after([]string{"A begins"}).lacks(raisedWhileHeld, p2, 18),
		base("an expired vote is confirmed", 3, 2).with(ticks, 2, rounds, 1).after(then(aVoted, "node 2: vote A1", "time", "A keeps")).lacks(inDate, p1, 17),
		base("a larger fence is answered later", 3, 2).counters(0, 1, 8).with(ticks, 0, rounds, 1).after(slices.Concat(aYields, gets("B1", "2", "3"))).lacks(newMaximum, p2, 20),
		base("a stopped node votes after another lease, and the dead one is adopted", 3, 2).counters(0, 0, 1).with(ticks, 3, adoptions, 1).late().after(stopped).lacks(0, p2, 20),
	}
}
