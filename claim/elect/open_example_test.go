package elect_test

import (
	"context"
	"fmt"

	"github.com/interlock-dev/interlock/claim/elect"
)

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
