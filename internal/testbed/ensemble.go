package testbed

import (
	"testing"
)

// Ensemble is a cluster of servers.
type Ensemble struct {
	tb testing.TB
	// Peers are the servers. Each can be killed and restarted separately.
	Peers []*Server

	serves func(addr string) error
	leads  func(addr string) bool
}

// Addrs returns the addresses of all peers.
func (e *Ensemble) Addrs() []string {
	var all []string
	for _, s := range e.Peers {
		all = append(all, s.Addr())
	}
	return all
}

// Wait blocks until all peers serve, for example after a restart of one.
func (e *Ensemble) Wait() {
	e.tb.Helper()
	for _, s := range e.Peers {
		e.mustServe(s)
	}
}

// Leader returns the current leader of etcd, Consul or ZooKeeper. It fails the test if none leads soon.
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
