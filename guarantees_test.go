package interlock

import (
	"errors"
	"testing"
	"time"
)

func TestTheZeroValuePromisesNothing(t *testing.T) {
	for name, r := range map[string]Requirements{
		"cross process":      {CrossProcess: true},
		"order":              {Order: FIFO},
		"wait":               {Wait: Push},
		"tokens survive":     {TokensSurvive: ServerCrash},
		"exclusion survives": {ExclusionSurvives: Partition},
		"blind":              {MaxBlind: time.Hour},
	} {
		var unmet *UnmetError
		if err := (Guarantees{Driver: "x"}).Check(r); !errors.As(err, &unmet) || len(unmet.Unmet) != 1 || unmet.Driver != "x" {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := (Guarantees{}).Check(Requirements{Order: Barging, Wait: Poll}); err != nil {
		t.Errorf("nothing is required: %v", err)
	}
}

func TestCheckListsAllThatIsUnmet(t *testing.T) {
	g := Guarantees{Driver: "x", Order: Barging, Wait: Poll, CrossProcess: true, Blind: time.Minute,
		TokensSurvive: ServerCrash, ExclusionSurvives: ServerClockJump}
	met := Requirements{CrossProcess: true, TokensSurvive: ServerCrash, ExclusionSurvives: ServerClockJump, MaxBlind: time.Minute}
	if err := g.Check(met); err != nil {
		t.Fatal(err)
	}
	var unmet *UnmetError
	err := g.Check(Requirements{Order: FIFO, Wait: Push, TokensSurvive: ServerCrash | DataLoss, MaxBlind: time.Second})
	if !errors.As(err, &unmet) || len(unmet.Unmet) != 4 {
		t.Fatalf("%v", err)
	}
	if want := "tokens may fall after: data loss"; unmet.Unmet[2] != want {
		t.Fatalf("%q, want %q", unmet.Unmet[2], want)
	}
}

func TestNames(t *testing.T) {
	for got, want := range map[string]string{
		Fenced.String(): "fenced", Class(0).String(): "unstated", Class(9).String(): "unknown(9)",
		Session.String(): "session", ServerClock.String(): "server", FIFO.String(): "fifo", Push.String(): "push",
		Faults(0).String(): "none", (HolderPause | OperatorDelete).String(): "holder pause, operator delete",
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
