package etcd_test

import (
	"context"
	"fmt"

	"github.com/pawl-go/pawl/persist/etcd"
)

// A location comes from a flag or an environment variable. Errors do not show its password. Package
// etcdtest has an example that opens a store in a cluster.
func ExampleOpenLocation() {
	_, err := etcd.OpenLocation(context.Background(), "etcd://chat:secret@10.0.0.1,10.0.0.2,10.0.0.3/chat?cert=client.pem", etcd.Config{})
	fmt.Println(err)
	// Output: etcd: bad location: cert and key belong together
}
