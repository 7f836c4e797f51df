package dlock

// Stats describes what a [Client] does now (the fields of type int), and what it has done
// since it was made (the other fields, which only grow).
type Stats struct {
	Leases  int // leases held
	Waiters int // calls that wait for a key

	// ReleasesOwed counts the releases that are owed, answered or not: see "Unknown outcomes"
	// in the package documentation. They include leases that were released before their
	// [WithMinHold] has passed. A number that stays high means that the store does not
	// answer, or refuses.
	ReleasesOwed int

	// ReleasesDropped counts owed releases that were dropped because there were more than
	// 100,000. Their keys stay taken for up to one TTL.
	ReleasesDropped uint64

	Lost           uint64 // leases lost, including those whose Release discovered the loss
	RenewalsFailed uint64 // failed renewals; one for each lease of a failed batch
	EventsDropped  uint64 // because an [Observer] is slower than the events of the background
}

// Stats returns the figures of c and all Clients that are related to it by [Client.With].
// They are from one instant, except Waiters, RenewalsFailed and EventsDropped, which are read
// at about the same time. It is cheap enough to be called once a second.
func (c *Client) Stats() Stats {
	k := c.keeper
	if k == nil {
		return Stats{}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return Stats{
		Leases:          k.leases,
		Waiters:         int(k.waiters.Load()),
		ReleasesOwed:    k.owed.fresh.Len() + k.owed.settled.Len() + k.owed.holds.Len(),
		ReleasesDropped: k.owed.dropped,
		Lost:            k.lost,
		RenewalsFailed:  k.renewals.failed.Load(),
		EventsDropped:   k.events.dropped.Load(),
	}
}
