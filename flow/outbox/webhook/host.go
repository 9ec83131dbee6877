package webhook

import "context"

// A host has running or waiting requests.
type host struct {
	turns chan struct{}
	users int
}

// enter waits until a host has fewer than Options.PerHost requests.
func (s *Sink) enter(ctx context.Context, name string) (leave func(), err error) {
	h := s.use(name)
	select {
	case h.turns <- struct{}{}:
		return func() { <-h.turns; s.disuse(name, h) }, nil
	case <-ctx.Done():
		s.disuse(name, h)
		return nil, context.Cause(ctx)
	}
}

func (s *Sink) use(name string) *host {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.hosts[name]
	if h == nil {
		h = &host{turns: make(chan struct{}, s.options.PerHost)}
		s.hosts[name] = h
	}
	h.users++
	return h
}

// disuse deletes a host without requests: messages may name any number of hosts.
func (s *Sink) disuse(name string, h *host) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h.users--; h.users == 0 {
		delete(s.hosts, name)
	}
}
