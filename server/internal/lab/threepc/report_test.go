package threepc

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/internal/generated"
)

// TestReport requires that the page in docs matches the simulation: costs, each crash point, random
// faults, the result of every model and the shortest schedules.
func TestReport(t *testing.T) {
	t.Parallel()
	page := filepath.Join("..", "..", "..", "..", "docs", "explanation", "three-phase.md")
	title, rest, _ := strings.Cut(Compare().String(), "\n")
	text := title + "\n\n<!-- Written by: go test ./server/internal/lab/threepc -run TestReport -update -->\n" + rest
	generated.Check(t, page, text)
}

// TestReportAsJSON requires names in one form, and protocols by name.
func TestReportAsJSON(t *testing.T) {
	text, err := json.Marshal(Report{
		Participants: 3,
		Costs:        []Cost{{Protocol: TwoPhase, Participants: 1, Messages: 4, Writes: 2, Decided: 2, Known: 3}},
		Crashes:      []CrashPoints{{Protocol: ThreePhase, Sites: 1, Points: 9, At: []int{7}, Waited: time.Millisecond, Back: time.Second}},
		Faults:       []Faults{{Protocol: Register, Fault: "crashes", Runs: 5, Committed: 4, Blocked: 1, Waited: time.Microsecond}},
		Models:       []*Exploration{{Model: Model{Protocol: TwoPhase, Participants: 2, Crashes: 1}, Worlds: 8, Blocked: []string{"C begins"}, Waiting: "P1"}},
		Blocking:     []string{"a"}, Deciding: []string{"b"},
	})
	const want = `{"participants":3,` +
		`"costs":[{"protocol":"2PC","participants":1,"messages":4,"writes":2,"decided":2,"known":3}],` +
		`"crashes":[{"protocol":"3PC","sites":1,"points":9,"blocked":0,"at":[7],"split":0,"waited_ns":1000000,"back_ns":1000000000}],` +
		`"faults":[{"protocol":"2PC + register","fault":"crashes","runs":5,"committed":4,"blocked":1,"split":0,"waited_ns":1000}],` +
		`"models":[{"model":{"protocol":"2PC","participants":2,"crashes":1,"partition":false,"asynchronous":false},` +
		`"worlds":8,"blocked":["C begins"],"waiting":"P1"}],"blocking":["a"],"deciding":["b"]}`
	if err != nil || string(text) != want {
		t.Errorf("%s, %v\nwant %s", text, err, want)
	}
}
