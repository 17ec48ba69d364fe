package main

import (
	"context"
	"errors"
	"fmt"
	"image"
	"image/color"
	"image/draw"
	"image/png"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/flow/batch"
)

const (
	points = 1200 // of a new account
	price  = 5    // of a thumbnail
)

// Wallet is an account.
type Wallet struct {
	Points int64 `json:"points"`
}

// Wallets are the accounts, by the job that they pay for.
var Wallets = pawl.Kind[Wallet]{Name: "wallet"}

// openAccount gives points to an account that does not exist.
func openAccount(ctx context.Context, rt *pawl.Runtime, account string) error {
	_, err := Wallets.Scope(rt, account).SetState(ctx, Wallet{Points: points}, pawl.IfAbsent())
	if errors.Is(err, pawl.ErrExists) {
		return nil
	}
	return err
}

// Picture is an item of a job.
type Picture struct {
	Number int `json:"number"`
}

// pictures returns n items.
func pictures(n int) (all []Picture) {
	for i := range n {
		all = append(all, Picture{i})
	}
	return all
}

// Thumbnail is what the call of an item makes.
type Thumbnail struct {
	File string `json:"file"`
}

// Studio stands for the other system. It keeps a file for each key, so a repeated call makes no
// second one.
type Studio struct {
	folder string
	work   func(ctx context.Context, p Picture) error // the costly part of a call
}

// queue returns the queue of the studio.
func (s *Studio) queue(rt *pawl.Runtime, lease time.Duration) (*batch.Queue[Picture, Thumbnail], error) {
	return batch.New(rt, batch.Config[Picture, Thumbnail]{
		Name:   "thumbnails",
		Ledger: batch.ScopeLedger(Wallets, "points"),
		Price:  func(Picture) (int64, error) { return price, nil },
		Make:   s.make,
		Remove: s.remove,

		Items:     4,    // calls at a time
		Interrupt: true, // Cancel ends the calls in progress
		Lease:     lease,
		Poll:      200 * time.Millisecond,
	})
}

// file returns the name of the file of a key.
func (s *Studio) file(key string) string {
	return filepath.Join(s.folder, url.PathEscape(key)+".png")
}

// make makes a thumbnail. The file is there from the beginning, and complete at the end: a call that
// is interrupted leaves half of it.
func (s *Studio) make(ctx context.Context, key string, p Picture) (t Thumbnail, err error) {
	file, err := os.Create(s.file(key))
	if err != nil {
		return t, err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	if err := s.work(ctx, p); err != nil {
		return t, err
	}
	gray := image.NewUniform(color.Gray{Y: uint8(p.Number)})
	small := image.NewGray(image.Rect(0, 0, 32, 32))
	draw.Draw(small, small.Bounds(), gray, image.Point{}, draw.Src)
	return Thumbnail{File: file.Name()}, png.Encode(file, small)
}

// remove removes the thumbnail of a key, also if its call did not return.
func (s *Studio) remove(_ context.Context, key string, _ *Thumbnail) error {
	if err := os.Remove(s.file(key)); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// report prints what a job has cost and left. It returns an error if the books do not balance, or if
// a file is missing or left over.
func (s *Studio) report(
	ctx context.Context, rt *pawl.Runtime, queue *batch.Queue[Picture, Thumbnail], p batch.Progress, show *display,
) error {
	wallet, err := Wallets.Scope(rt, p.Account).State(ctx)
	if err != nil {
		return err
	}
	paid, files := 0, 0
	for item, err := range queue.Items(ctx, p.ID) {
		if err != nil {
			return err
		}
		if item.State == batch.Made {
			paid++
		}
		switch _, err := os.Stat(s.file(item.Key)); {
		case err == nil:
			files++
		case !errors.Is(err, fs.ErrNotExist):
			return err
		}
	}
	show.line("%s: %d of %d made, %d canceled", p.Status, p.Done, p.Items, p.Canceled)
	if p.Reason != "" {
		show.line("reason: %s", p.Reason)
	}
	show.line("points before: %d, charged: %d, refunded: %d, balance: %d", points, p.Charged, p.Refunded, wallet.Points)
	show.line("files left: %d", files)
	if wallet.Points != points-p.Cost() || p.Cost() != int64(paid)*price || files != paid {
		return fmt.Errorf("%d thumbnails are paid for: the books do not balance", paid)
	}
	show.line("the books balance: %d thumbnails are paid for", paid)
	return nil
}
