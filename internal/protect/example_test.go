package protect_test

import (
	"errors"
	"fmt"
	"log/slog"
	"runtime"

	"github.com/pawl-go/pawl/internal/protect"
)

// A panic and runtime.Goexit are errors.
func ExampleCall() {
	log := slog.New(slog.DiscardHandler)
	fmt.Println(protect.Call(log, func() error { return nil }))
	fmt.Println(protect.Call(log, func() error { panic("no") }))
	fmt.Println(protect.Call(log, func() error {
		runtime.Goexit()
		return nil
	}))
	// Output:
	// <nil>
	// the function panicked: no
	// the function called runtime.Goexit
}

// A text that a document cannot hold is made valid.
func ExampleText() {
	fmt.Printf("%+q\n", protect.Text(errors.New("550 caf\xe9\x00")))
	// Output:
	// "550 caf\ufffd\ufffd"
}
