// Package job works on documents that are due: reminders, retries, mails to be sent.
//
// A job is a document of the user's own. Its type embeds State, and its kind names the two fields
// that the store indexes:
//
//	type Reminder struct {
//		job.State
//		To, Text string
//	}
//
//	var Reminders = pawl.Kind[Reminder]{Name: "reminder", Label: job.Label, Due: job.Due}
//
// Writing a document whose State comes from At creates a job, by any verb and in any transaction. A
// Worker takes due jobs, in all processes together, and passes each to a handler. A job that
// succeeds is deleted. A job that fails is due again after a delay; when its attempts are spent, it
// is parked with its reason. To use the id of a finished job again, pass pawl.IfAbsent.
//
// The JSON names label, due, attempts and error belong to State.
//
// A handler may run more than once for one job: its process may be killed after the handler
// returned and before that is committed. Writes that belong to the job are given to OnCommit, and
// are committed once. Calls to other systems pass the key of the job.
package job
