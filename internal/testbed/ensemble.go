package testbed

import (
	"testing"
)

// An Ensemble is several servers that agree.
type Ensemble struct {
	tb testing.TB
	// Peers are the servers, each of which can be killed and restarted alone.
	Peers []*Server

	serves func(addr string) error
	leads  func(addr string) bool
}

// Addrs are the addresses of all peers.
func (e *Ensemble) Addrs() []string {
	var all []string
	for _, s := range e.Peers {
		all = append(all, s.Addr())
	}
	return all
}

// Wait waits until all peers serve, as after the restart of one.
func (e *Ensemble) Wait() {
	e.tb.Helper()
	for _, s := range e.Peers {
		e.mustServe(s)
	}
}

// Leader is the peer of etcd or ZooKeeper that leads now. The test fails if none does soon.
func (e *Ensemble) Leader() *Server {
	e.tb.Helper()
	for range looks(bound) {
		for _, s := range e.Peers {
			if e.leads(s.Addr()) {
				return s
			}
		}
	}
	e.tb.Fatalf("%s: no leader within %v", e.Peers[0].kind.name, bound)
	return nil
}

func (e *Ensemble) mustServe(s *Server) {
	e.tb.Helper()
	Eventually(e.tb, s.kind.name+" on "+s.Addr()+" serves", bound, func() bool { return e.serves(s.Addr()) == nil })
}
