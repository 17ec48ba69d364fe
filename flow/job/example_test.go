package job_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/flow/job"
	"github.com/pawl-go/pawl/persist/memory"
)

// Mail is a mail to be sent. State makes it a job.
type Mail struct {
	job.State
	To   string `json:"to"`
	Text string `json:"text"`
}

var Mails = pawl.Kind[Mail]{Name: "mail", Label: job.Label, Due: job.Due}

// User counts the mails that a user got.
type User struct {
	Mails int `json:"mails"`
}

var Users = pawl.Kind[User]{Name: "user"}

// welcome creates a user, and the job that greets the user, in one commit.
func welcome(ctx context.Context, rt *pawl.Runtime, name string) error {
	return pawl.Transact(ctx, rt, func(ctx context.Context, tx *pawl.Tx) error {
		if _, err := Users.Scope(tx, name).SetState(ctx, User{}, pawl.IfAbsent()); err != nil {
			return err
		}
		_, err := Mails.Scope(tx, "welcome/"+name).SetState(ctx, Mail{State: job.At(time.Now()), To: name, Text: "Welcome!"})
		return err
	})
}

// sendMail sends one mail. The mail server recognises a repeated call by the key of the job.
func sendMail(rt *pawl.Runtime, server func(key, to, text string) error) (*job.Worker[Mail], error) {
	return job.New(rt, job.Config[Mail]{
		Kind: Mails,
		Handle: func(ctx context.Context, j *job.Job[Mail]) error {
			if err := server(j.Key(), j.State.To, j.State.Text); err != nil {
				return err // the job is due again later
			}
			j.OnCommit(func(ctx context.Context, tx *pawl.Tx) error { // in the commit that deletes the job
				_, err := Users.Scope(tx, j.State.To).IncState(ctx, "mails", 1)
				return err
			})
			return nil
		},
		Retry: pawl.Retry{Attempts: 3, First: time.Millisecond, Max: time.Millisecond},
	})
}

// A worker does the jobs that are due. The first attempt at this one fails, and the second succeeds.
func Example() {
	ctx := context.Background()
	rt, _ := pawl.Open(pawl.Config{Store: memory.New(), Kinds: []pawl.AnyKind{Mails, Users}})
	defer rt.Close(ctx)

	sent := make(chan struct{})
	fail := true
	worker, err := sendMail(rt, func(key, to, text string) error {
		if fail {
			fail = false
			fmt.Println(key, "failed")
			return errors.New("mail server is down")
		}
		fmt.Println(key, "sent to", to)
		close(sent)
		return nil
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := worker.Start(ctx); err != nil {
		fmt.Println(err)
		return
	}
	if err := welcome(ctx, rt, "ann"); err != nil {
		fmt.Println(err)
	}
	<-sent
	if err := worker.Stop(ctx); err != nil { // waits for the commit
		fmt.Println(err)
	}
	ann, _ := Users.Scope(rt, "ann").State(ctx)
	fmt.Println("mails:", ann.Mails)
	// Output:
	// mail/welcome/ann failed
	// mail/welcome/ann sent to ann
	// mails: 1
}

// A job that fails for good is parked, with its reason. Retry puts it back to work.
func ExampleWorker_Parked() {
	ctx := context.Background()
	rt, _ := pawl.Open(pawl.Config{Store: memory.New(), Kinds: []pawl.AnyKind{Mails, Users}})
	defer rt.Close(ctx)
	known := false
	worker, err := job.New(rt, job.Config[Mail]{
		Kind:   Mails,
		Parked: func(id string, m Mail) { fmt.Println("parked:", id, m.Error) },
		Handle: func(_ context.Context, j *job.Job[Mail]) error {
			if !known {
				return pawl.NonRetryable(errors.New("no such user"))
			}
			fmt.Println("sent:", j.ID)
			return nil
		},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	_, _ = Mails.Scope(rt, "1").SetState(ctx, Mail{State: job.At(time.Now()), To: "bob"})
	_, _ = worker.Once(ctx) // in tests and tools: does what is due, and returns

	known = true
	for snap, err := range worker.Parked(ctx) {
		if err == nil {
			err = worker.Retry(ctx, snap.ID)
		}
		if err != nil {
			fmt.Println(err)
		}
	}
	_, _ = worker.Once(ctx)
	// Output:
	// parked: 1 no such user
	// sent: 1
}

// Again makes a job due again, and Keep keeps its document. Without them the document is deleted.
func ExampleJob_Again() {
	ctx := context.Background()
	rt, _ := pawl.Open(pawl.Config{Store: memory.New(), Kinds: []pawl.AnyKind{Mails, Users}})
	defer rt.Close(ctx)
	answers := []string{"queued", "queued", "delivered"}
	worker, err := job.New(rt, job.Config[Mail]{
		Kind: Mails,
		Handle: func(_ context.Context, j *job.Job[Mail]) error {
			answer := answers[0] // of the mail server
			answers = answers[1:]
			fmt.Println(answer)
			if answer == "delivered" {
				j.Keep()
			} else {
				j.Again(0) // in a program: time.Minute
			}
			return nil
		},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	_, _ = Mails.Scope(rt, "1").SetState(ctx, Mail{State: job.At(time.Now()), To: "ann"})
	n, err := worker.Once(ctx)
	fmt.Println(n, err)
	mail, _ := Mails.Scope(rt, "1").State(ctx)
	fmt.Println(mail.Label)
	// Output:
	// queued
	// queued
	// delivered
	// 3 <nil>
	// kept
}

// Report counts the reports that were made.
type Report struct {
	Made int `json:"made"`
}

var Reports = pawl.Kind[Report]{Name: "report"}

// A scheduler does something at each tick, once in all processes together.
func ExampleScheduler() {
	ctx := context.Background()
	rt, _ := pawl.Open(pawl.Config{Store: memory.New(), Kinds: []pawl.AnyKind{Reports}})
	defer rt.Close(ctx)
	scheduler, err := job.NewScheduler(rt, job.SchedulerConfig{Schedules: []job.Schedule{{
		Name:  "report",
		Every: 10 * time.Millisecond, // in a program: Cron: "0 9 * * MON-FRI"
		Do: func(ctx context.Context, tx *pawl.Tx, tick time.Time) error {
			_, err := Reports.Scope(tx, "all").IncState(ctx, "made", 1) // or write a job, or start a run
			return err
		},
	}}})
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := scheduler.Start(ctx); err != nil {
		fmt.Println(err)
		return
	}
	for change, err := range Reports.Scope(rt, "all").Watch(ctx) {
		if err != nil {
			fmt.Println(err)
			return
		}
		if change.State().Made >= 3 {
			fmt.Println("three reports")
			break
		}
	}
	fmt.Println("stopped:", scheduler.Stop(ctx))
	// Output:
	// three reports
	// stopped: <nil>
}
