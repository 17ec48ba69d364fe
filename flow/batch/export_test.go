package batch

// Hook calls hook at each point of the protocol, with the id of the job.
func (q *Queue[I, A]) Hook(hook func(point, id string)) {
	q.hook = func(p point, id string) { hook(string(p), id) }
}
