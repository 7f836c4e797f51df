package dlock

// Lines returns how many lines a Client has. See WithLocalTurns.
func (c *Client) Lines() int {
	t := &c.keeper.turns
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.lines)
}

// RefuseCalls does the first step of Close only: calls are refused, and waits go on.
func (c *Client) RefuseCalls() { c.keeper.closed.Store(true) }
