package main

import (
	"fmt"
	"io"
	"os"
	"sync"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"

	"github.com/pawl-go/pawl/flow/batch"
)

// display shows the progress of a job: as a bar on a terminal, and otherwise as lines.
type display struct {
	mu   sync.Mutex // protects the rest
	out  io.Writer
	bar  *progressbar.ProgressBar // nil: lines
	next int                      // the number of thumbnails that the next line waits for
}

func newDisplay(out io.Writer, items int) *display {
	d := &display{out: out}
	if file, ok := out.(*os.File); ok && term.IsTerminal(int(file.Fd())) {
		d.bar = progressbar.NewOptions(items, progressbar.OptionSetWriter(out), progressbar.OptionShowCount(),
			progressbar.OptionSetDescription("making"), progressbar.OptionClearOnFinish())
	}
	return d
}

// line prints a line, and puts the bar below it.
func (d *display) line(format string, args ...any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.bar != nil {
		_ = d.bar.Clear()
	}
	fmt.Fprintf(d.out, format+"\n", args...)
}

// progress shows how far a job is. Lines are printed for each twentieth part of it.
func (d *display) progress(p batch.Progress) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.bar != nil {
		if p.CancelRequested {
			d.bar.Describe("canceling")
		}
		_ = d.bar.Set(p.Done)
		return
	}
	if p.Done >= d.next && !p.Status.Finished() {
		fmt.Fprintf(d.out, "%s: %d of %d made, %d points charged\n", p.Status, p.Done, p.Items, p.Charged)
		d.next = p.Done + max(1, p.Items/20)
	}
}
