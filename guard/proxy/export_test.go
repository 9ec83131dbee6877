package proxy

// Busy is how many resources somebody is using, or waits for.
func (p *Caller) Busy() int {
	p.lanes.mu.Lock()
	defer p.lanes.mu.Unlock()
	return len(p.lanes.busy)
}
