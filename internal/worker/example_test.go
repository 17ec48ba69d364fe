package worker_test

import (
	"context"
	"fmt"
	"time"

	"github.com/pawl-go/pawl/internal/worker"
)

// A loop sends letters. Putting a letter into the box wakes it, and the poll finds letters from
// other processes.
func Example() {
	box := make(chan string, 10)
	sent := make(chan struct{})
	postman := worker.New(worker.Config[string]{
		Name: "postman",
		Poll: time.Minute,
		Take: func(_ context.Context, limit int) (letters []string, err error) {
			for len(letters) < limit {
				select {
				case letter := <-box:
					letters = append(letters, letter)
				default:
					return letters, nil
				}
			}
			return letters, nil
		},
		Run: func(_ context.Context, letter string) {
			fmt.Println("sent:", letter)
			sent <- struct{}{}
		},
	})
	ctx := context.Background()
	if err := postman.Start(ctx); err != nil {
		fmt.Println(err)
	}
	for _, letter := range []string{"to Ada", "to Grace"} {
		box <- letter
		postman.Wake()
		<-sent
	}

	limited, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	fmt.Println("stopped:", postman.Stop(limited))
	// Output:
	// sent: to Ada
	// sent: to Grace
	// stopped: <nil>
}

// In tests, Once runs all due jobs without a background loop.
func ExampleLoop_Once() {
	due := []int{1, 2, 3}
	loop := worker.New(worker.Config[int]{
		Take: func(_ context.Context, limit int) ([]int, error) {
			n := min(limit, len(due))
			jobs := due[:n]
			due = due[n:]
			return jobs, nil
		},
		Run: func(_ context.Context, job int) { fmt.Println("job", job) },
	})
	fmt.Println(loop.Once(context.Background()))
	// Output:
	// job 1
	// job 2
	// job 3
	// 3 <nil>
}
