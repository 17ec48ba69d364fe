package pawltest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
)

// Race calls write in several goroutines that start together, and fails t if an update was lost or doubled.
// write makes updates and returns the number of those that were acknowledged. count returns the
// number of updates that are there, such as the sum of a counter or the length of a list. Race
// calls count before and after, and the difference must be the sum of what the writers returned. So a
// lost update and a doubled one cancel each other out; History finds both.
//
// An error of write or count fails t. A refusal that is expected, such as "too few credits", is no
// error for Race: do not count it, and return nil.
//
// A race is found only if the writers overlap. Let each of them make many updates, and spread them
// over two runtimes on one store: those behave like two processes.
func Race(t testing.TB, writers int,
	write func(ctx context.Context, writer int) (acknowledged int, err error),
	count func(ctx context.Context) (int, error),
) {
	t.Helper()
	before, err := count(t.Context())
	if err != nil {
		t.Fatalf("pawltest: count before the race: %v", err)
	}
	acknowledged, err := runTogether(t.Context(), writers, write)
	if err != nil {
		t.Fatalf("pawltest: %v", err)
	}
	after, err := count(t.Context())
	switch {
	case err != nil:
		t.Fatalf("pawltest: count after the race: %v", err)
	case after-before < acknowledged:
		t.Fatalf("pawltest: %d of %d acknowledged updates are lost", acknowledged-(after-before), acknowledged)
	case after-before > acknowledged:
		t.Fatalf("pawltest: %d updates are there, but only %d were acknowledged", after-before, acknowledged)
	case acknowledged == 0:
		t.Fatal("pawltest: no update was acknowledged, so the race shows nothing")
	}
}

// runTogether runs the writers of a race. It returns the sum of their acknowledged updates, and
// their errors.
func runTogether(ctx context.Context, writers int, write func(ctx context.Context, writer int) (int, error)) (sum int, err error) {
	var (
		ready, done sync.WaitGroup
		start       = make(chan struct{})
		counts      = make([]int, writers)
		errs        = make([]error, writers)
	)
	ready.Add(writers)
	for writer := range writers {
		errs[writer] = fmt.Errorf("writer %d ended without an answer", writer) // by runtime.Goexit
		done.Go(func() {
			ready.Done()
			<-start
			n, err := write(ctx, writer)
			if counts[writer], errs[writer] = n, nil; err != nil {
				errs[writer] = fmt.Errorf("writer %d: %w", writer, err)
			}
		})
	}
	ready.Wait()
	close(start)
	done.Wait()
	for _, n := range counts {
		sum += n
	}
	return sum, errors.Join(errs...)
}
