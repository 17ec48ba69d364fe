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
	opts     []Option
	applying bool // they were given
}

// LeaseFor sets how long the lease outlives its holder's last sign of life; the default is DefaultLease. It is renewed three times as often.
func LeaseFor(d time.Duration) LeaseOption { return func(c *leaseCall) { c.length = d } }

// Wait waits for the lease until ctx ends: in order of arrival within this process, and so that no process is kept from it for good by others.
func Wait() LeaseOption { return func(c *leaseCall) { c.wait = true } }

// HeldBy names the holder, for HeldError and for people; the default is Config.Holder.
func HeldBy(name string) LeaseOption { return func(c *leaseCall) { c.holder = name } }

// Applying commits m together with taking the lease: both or neither. Opts are m's, so that the lease can be taken only of a scope
// that exists (IfExists), say; an error of m is returned as the verbs do.
func Applying(m Mutation, opts ...Option) LeaseOption {
	return func(c *leaseCall) { c.mutation, c.opts, c.applying = m, opts, true }
}

func (rt *Runtime) leaseCall(opts []LeaseOption) (leaseCall, error) {
	c := leaseCall{length: DefaultLease, holder: rt.holder, mutation: All{}}
	for _, o := range opts {
		if o == nil {
			return c, &ArgumentError{Argument: "option", Reason: "nil"}
		}
		o(&c)
	}
	if c.length < time.Millisecond {
		return c, &ArgumentError{Argument: "LeaseFor", Reason: fmt.Sprintf("%v is less than a millisecond", c.length)}
	}
	if err := checkName(Key{}, "holder", c.holder, MaxHolder); err != nil {
		return c, err
	}
	return c, nil
}
