package memory_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
)

// After a failure, later messages of its topic and key are not accepted.
func ExampleSink() {
	var sink memory.Sink
	sink.Refuse(func(m driver.Message) error {
		if m.ID == "2" {
			return errors.New("not now")
		}
		return nil
	})
	answers := sink.Publish(context.Background(), []driver.Message{
		{ID: "1", Topic: "t", Key: "a"}, {ID: "2", Topic: "t", Key: "a"}, {ID: "3", Topic: "t", Key: "a"}, {ID: "4", Topic: "t", Key: "b"}})
	fmt.Println(answers[1], "and", errors.Is(answers[2], driver.ErrNotSent))
	for _, m := range sink.Messages() {
		fmt.Println(m.ID)
	}
	// Output:
	// not now and true
	// 1
	// 4
}

func ExampleNotifier() {
	var notifier memory.Notifier
	stop := notifier.Listen(func(string) { fmt.Println("something was committed") })
	notifier.Notify()
	stop()
	notifier.Notify()
	// Output: something was committed
}
