package testbed

import "testing"

func TestKafkaRestarts(t *testing.T) {
	t.Parallel()
	s := Kafka(t)
	addr := s.Addr()
	s.Kill()
	if err := askBrokers(addr, 1); err == nil {
		t.Error("a killed broker answers")
	}
	s.Restart()
	if err := askBrokers(addr, 1); err != nil {
		t.Error(err)
	}
}
