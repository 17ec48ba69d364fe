package stream

import "context"

// ReactHook calls hook at each point of the protocol, with the name of the stream if there is one.
func (l *Log) ReactHook(hook func(point, stream string)) {
	l.hook = func(p point, stream string) { hook(string(p), stream) }
}

// ReactPoints returns the list of points that the package keeps for tests.
func ReactPoints() (all []string) {
	for _, p := range points {
		all = append(all, string(p))
	}
	return all
}

// ReactRoute routes new events for the reactions of l, and claims nothing.
func (l *Log) ReactRoute(ctx context.Context) error {
	var all []*reaction
	for _, r := range l.reactions {
		all = append(all, r)
	}
	for more := true; more; {
		var err error
		if more, err = l.route(ctx, all); err != nil {
			return err
		}
	}
	return nil
}
