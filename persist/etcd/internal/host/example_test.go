package host_test

import (
	"context"
	"fmt"
	"time"

	"github.com/pawl-go/pawl/persist/etcd/internal/host"
)

func Example() {
	ahead := host.Clock(host.With(context.Background(), time.Hour))
	fmt.Println(time.Until(ahead()).Round(time.Minute))
	// Output: 1h0m0s
}
