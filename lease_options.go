package pawl

import (
	"fmt"
	"time"
)

// LeaseOption changes how a lease is taken.
type LeaseOption func(*leaseCall)

type leaseCall struct {
	length   time.Duration
	wait     bool
	holder   string
	mutation Mutation
	opts     []CallOption
	applying bool // WithMutation was given
}

// LeaseFor sets how long the lease lives after its last renewal; the default is DefaultLease. It is
// renewed every third of that.
func LeaseFor(d time.Duration) LeaseOption { return func(c *leaseCall) { c.length = d } }

// WaitForLease waits for the lease until ctx ends. Waiters of one process get it in order of
// arrival, and no process keeps the others from it for good.
func WaitForLease() LeaseOption { return func(c *leaseCall) { c.wait = true } }

// HeldBy names the holder, as HeldError reports it; the default is Config.Holder.
func HeldBy(name string) LeaseOption { return func(c *leaseCall) { c.holder = name } }

// Holder returns the name of this runtime's leases without HeldBy: Config.Holder, or host and
// process id.
func (rt *Runtime) Holder() string { return rt.holder }

// WithMutation commits m together with taking the lease: both or neither. Opts are the options of
// m; with IfExists, for example, the lease is taken only of a scope that exists. Acquire returns an
// error of m as the verbs do. Kind.Take applies m to each scope that it takes.
func WithMutation(m Mutation, opts ...CallOption) LeaseOption {
	return func(c *leaseCall) { c.mutation, c.opts, c.applying = m, opts, true }
}

// leaseCall returns the call that opts ask for, or *ArgumentError or *LimitError.
func (rt *Runtime) leaseCall(opts []LeaseOption) (leaseCall, error) {
	c := leaseCall{length: DefaultLease, holder: rt.holder, mutation: All{}}
	for _, o := range opts {
		if o == nil {
			return c, &ArgumentError{Argument: "option", Reason: "nil"}
		}
		o(&c)
	}
	if c.length < time.Millisecond {
		return c, &ArgumentError{Argument: "LeaseFor", Reason: fmt.Sprintf("must be at least a millisecond, got %v", c.length)}
	}
	if err := checkName(Key{}, "holder", c.holder, MaxHolder); err != nil {
		return c, err
	}
	return c, nil
}
