package elect_test

import (
	"context"
	"fmt"
	"log"

	"github.com/interlock-dev/interlock/claim/elect"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/guard/fence"
)

func ExampleElection_Run() {
	ctx := context.Background()
	space := memory.NewSpace()
	d := space.Open(nil) // or etcd.Open, postgres.Open
	defer d.Close(ctx)
	store := fence.NewStore(space.Fence())
	elections, err := elect.New(d, &elect.Options{InProcess: true}) // memory is for one process
	if err != nil {
		log.Fatal(err)
	}
	defer elections.Close(ctx)

	err = elections.Run(ctx, "billing", func(ctx context.Context, term *elect.Term) error {
		// The store rejects the writes of a former leader that wakes up now.
		return store.Enter(ctx, term, "invoices", driver.Write{Key: "invoices", Value: []byte("42 sent")})
	})
	text, _ := space.Fence().Get("invoices")
	fmt.Printf("%s, %v\n", text, err)
	// Output: 42 sent, <nil>
}

// The next leader continues where the last one stopped.
func ExampleTerm_Save() {
	ctx := context.Background()
	space := memory.NewSpace()
	d := space.Open(nil)
	defer d.Close(ctx)
	elections, err := elect.New(d, &elect.Options{Values: space.Values(), InProcess: true})
	if err != nil {
		log.Fatal(err)
	}
	defer elections.Close(ctx)

	for range 2 {
		err := elections.Run(ctx, "import", func(ctx context.Context, term *elect.Term) error {
			position, err := term.Load(ctx, "position")
			if err != nil {
				return err
			}
			fmt.Printf("starting at %q\n", position)
			return term.Save(ctx, "position", []byte("row 1000"))
		})
		if err != nil {
			log.Fatal(err)
		}
	}
	// Output:
	// starting at ""
	// starting at "row 1000"
}

func ExampleElection_Observe() {
	ctx, stop := context.WithCancel(context.Background())
	space := memory.NewSpace()
	d := space.Open(nil)
	defer d.Close(context.Background())
	elections, err := elect.New(d, &elect.Options{Identity: "node-1", Values: space.Values(), InProcess: true})
	if err != nil {
		log.Fatal(err)
	}
	defer elections.Close(context.Background())

	seen, done := make(chan elect.Leader), make(chan struct{})
	go func() {
		defer close(done)
		_ = elections.Observe(ctx, "billing", func(l elect.Leader) { seen <- l })
	}()
	show := func() {
		if l := <-seen; l.Identity == "" {
			fmt.Println("nobody leads")
		} else {
			fmt.Printf("%s leads at %q\n", l.Identity, l.Data)
		}
	}
	show()
	_ = elections.Run(ctx, "billing", func(ctx context.Context, term *elect.Term) error {
		show()
		_ = term.Proclaim(ctx, []byte("10.0.0.1:80"))
		show()
		return nil
	})
	show()
	stop()
	<-done
	// Output:
	// nobody leads
	// node-1 leads at ""
	// node-1 leads at "10.0.0.1:80"
	// nobody leads
}

func ExampleOpen() {
	ctx := context.Background()
	elections, err := elect.Open(ctx, "memory://example", &elect.Options{InProcess: true}) // or etcd://…, zookeeper://…, consul://…
	if err != nil {
		panic(err)
	}
	defer elections.Close(ctx)
	err = elections.Run(ctx, "billing", func(ctx context.Context, term *elect.Term) error {
		fmt.Println("leads")
		return term.Proclaim(ctx, []byte("10.0.0.1:80")) // the values are those of the backend
	})
	fmt.Println(err)
	// Output:
	// leads
	// <nil>
}
