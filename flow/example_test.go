package flow_test

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/flow"
	"github.com/pawl-go/pawl/persist/memory"
)

// A chat answers the messages of a session one at a time, in whichever process they arrive. The
// tools of an answer run in parallel on a board in memory.
func Example() {
	type (
		Thread struct {
			Messages []string `json:"messages"`
		}
		Board struct {
			Results map[string]string `json:"results"`
		}
	)
	ctx := context.Background()
	rt, err := pawl.Open(pawl.Config{Store: memory.New()})
	if err != nil {
		panic(err)
	}
	chat, err := flow.New(rt, flow.Config{Kind: "chat", Admit: flow.Queue, Per: flow.PerSession})
	if err != nil {
		panic(err)
	}
	answer := flow.Define(chat, "answer", func(ctx context.Context, c *flow.Call, question string) (int, error) {
		board := pawl.Sequencer[Board](c, "board") // the board ends with the call
		var wg sync.WaitGroup
		for _, tool := range []string{"search", "weather", "clock"} {
			wg.Go(func() { _, _ = board.SetStateRecord(ctx, "results", tool, "done") })
		}
		wg.Wait()
		results, err := board.State(ctx)
		if err != nil {
			return 0, err
		}
		_, err = pawl.Session[Thread](c, c.Session).PushState(ctx, "messages", question)
		return len(results.Results), err
	})

	tools, err := answer.Do(ctx, flow.IDs{Session: "s1", User: "ann"}, "Will it rain?")
	fmt.Println(tools, err)
	thread, err := pawl.Session[Thread](rt, "s1").State(ctx)
	fmt.Println(thread.Messages, err)
	fmt.Println(chat.Stop(ctx), rt.Close(ctx))
	// Output:
	// 3 <nil>
	// [Will it rain?] <nil>
	// <nil> <nil>
}

// Any process that has the flow can cancel a call by its request id.
func ExampleFlow_Cancel() {
	ctx := context.Background()
	store := memory.New() // or a store that several processes share
	var flows []*flow.Flow
	for range 2 { // each stands for a process
		rt, err := pawl.Open(pawl.Config{Store: store})
		if err != nil {
			panic(err)
		}
		f, err := flow.New(rt, flow.Config{Kind: "report"})
		if err != nil {
			panic(err)
		}
		flows = append(flows, f)
		defer rt.Close(ctx)
		defer f.Stop(ctx)
	}
	began := make(chan struct{})
	slow := flow.Define(flows[0], "slow", func(ctx context.Context, _ *flow.Call, _ string) (string, error) {
		close(began)
		<-ctx.Done()
		return "", ctx.Err()
	})
	go func() {
		<-began
		fmt.Println("cancel:", flows[1].Cancel(ctx, "r1"))
	}()
	_, err := slow.Do(ctx, flow.IDs{Request: "r1"}, "")
	fmt.Println(errors.Is(err, flow.ErrCanceled))
	err = flows[1].Cancel(ctx, "r1")
	fmt.Println(pawl.Code(err))
	// Unordered output:
	// cancel: <nil>
	// true
	// NOT_FOUND
}

// A flow with Reject returns the request that is in flight.
func ExampleBusyError() {
	ctx := context.Background()
	rt, err := pawl.Open(pawl.Config{Store: memory.New()})
	if err != nil {
		panic(err)
	}
	f, err := flow.New(rt, flow.Config{Kind: "import", Admit: flow.Reject, Per: flow.PerUser})
	if err != nil {
		panic(err)
	}
	var again func() error
	load := flow.Define(f, "load", func(ctx context.Context, c *flow.Call, _ string) (string, error) {
		return "", again()
	})
	again = func() error { // called without the action's context, like a call from elsewhere
		_, err := load.Do(ctx, flow.IDs{Request: "r2", User: "ann"}, "")
		return err
	}
	_, err = load.Do(ctx, flow.IDs{Request: "r1", User: "ann"}, "")
	var busy *flow.BusyError
	fmt.Println(errors.As(err, &busy), busy.InFlight, pawl.HTTPStatus(err), pawl.IsRetryable(err))
	fmt.Println(f.Stop(ctx), rt.Close(ctx))
	// Output:
	// true r1 409 true
	// <nil> <nil>
}
