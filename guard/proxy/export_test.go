package proxy

// Busy returns the number of resources that callers use, or wait for.
func (p *Caller) Busy() int {
	p.lanes.mu.Lock()
	defer p.lanes.mu.Unlock()
	return len(p.lanes.busy)
}
