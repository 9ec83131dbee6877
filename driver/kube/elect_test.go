package kube

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/elect"
	"github.com/interlock-dev/interlock/driver"
)

// testElection: a leader resigns, another one dies, and each time the next is
// elected under a higher term.
func testElection(s *scene) {
	first, second := s.candidate("first"), s.candidate("second")
	one := first.campaign(s.T)
	second.begin(s.T)
	first.cancel()
	if err := <-first.done; err != nil {
		s.Errorf("the one that resigned: %v", err)
	}
	two := second.leads(s.T)
	s.system.Crash(s.T, second.driver)
	third := s.candidate("third")
	three := third.campaign(s.T)
	if one >= two || two >= three {
		s.Errorf("terms %d, %d, %d", one, two, three)
	}
	select {
	case err := <-second.done:
		if !errors.Is(err, interlock.ErrExpired) && !errors.Is(err, interlock.ErrLost) {
			s.Errorf("the one that was cut off: %v", err)
		}
	case <-time.After(patience):
		s.Error("the one that was cut off still leads")
	}
	third.cancel()
	if err := <-third.done; err != nil {
		s.Errorf("the last: %v", err)
	}
}

// campaigner is a candidate with a driver of its own.
type campaigner struct {
	driver   driver.Fenced
	election *elect.Election
	terms    chan interlock.Token
	cancel   context.CancelFunc
	done     chan error
}

func (s *scene) candidate(identity string) *campaigner {
	s.Helper()
	d, err := s.system.Open(s.T)
	if err != nil {
		s.Fatal(err)
	}
	e, err := elect.New(d, &elect.Options{Identity: identity})
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		_ = e.Close(ctx) // of one that was cut off it cannot work
	})
	return &campaigner{driver: d, election: e, terms: make(chan interlock.Token, 1), done: make(chan error, 1)}
}

// begin campaigns; the function ends with the leadership, or when the candidate is
// to resign.
func (c *campaigner) begin(t *testing.T) {
	var ctx context.Context
	ctx, c.cancel = context.WithCancel(context.WithoutCancel(t.Context()))
	t.Cleanup(c.cancel)
	go func() {
		c.done <- c.election.Run(context.WithoutCancel(ctx), "leader", func(leading context.Context, term *elect.Term) error {
			c.terms <- term.Token()
			select {
			case <-leading.Done():
			case <-ctx.Done():
			}
			return nil
		})
	}()
}

func (c *campaigner) campaign(t *testing.T) interlock.Token {
	t.Helper()
	c.begin(t)
	return c.leads(t)
}

func (c *campaigner) leads(t *testing.T) interlock.Token {
	t.Helper()
	select {
	case token := <-c.terms:
		return token
	case err := <-c.done:
		t.Fatalf("it ended with %v", err)
	case <-time.After(patience):
		t.Fatal("not elected")
	}
	return 0
}
