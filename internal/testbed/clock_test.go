package testbed

import (
	"net/http"
	"os/exec"
	"strconv"
	"testing"
	"time"
)

// TestStepClock checks that programs of C and of Go read the stepped wall clock, and this
// process does not.
func TestStepClock(t *testing.T) {
	t.Parallel()
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip(err)
	}
	p := Command(t, bash, "-c", `while read; do printf '%(%s)T\n' -1; done`)
	for _, by := range []time.Duration{0, time.Hour, -time.Hour, 0} {
		p.StepClock(by)
		if _, err := p.Stdin().Write([]byte("\n")); err != nil {
			t.Fatal(err)
		}
		seconds, err := strconv.ParseInt(p.Line(bound), 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		if ahead := time.Until(time.Unix(seconds, 0)) - by; ahead.Abs() > time.Minute {
			t.Errorf("stepped by %v, it is %v off that", by, ahead)
		}
	}
	server := Etcd(t, "--unsafe-no-fsync")
	server.StepClock(time.Hour)
	answer, err := http.Get(server.URL() + "/health")
	if err != nil {
		t.Fatal(err)
	}
	defer http.DefaultClient.CloseIdleConnections()
	defer answer.Body.Close()
	if date, err := http.ParseTime(answer.Header.Get("Date")); err != nil || time.Until(date) < 50*time.Minute {
		t.Errorf("the server's time is %v (%v)", date, err)
	}
}
