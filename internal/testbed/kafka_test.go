package testbed

import "testing"

func TestKafkaRestarts(t *testing.T) {
	s := Kafka(t)
	addr := s.Addr()
	s.Kill()
	if err := askKafka(addr); err == nil {
		t.Error("a killed broker answers")
	}
	s.Restart()
	if err := askKafka(addr); err != nil {
		t.Error(err)
	}
}
