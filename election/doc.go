// Package election makes one of several processes the leader. The others wait, and one of them
// takes over when the leader stops, dies or loses its store.
//
//	client := dlock.New(goredis.New(rdb), dlock.WithOwner(dlock.HostOwner()), dlock.WithTTL(15*time.Second))
//	leader := election.New(client, "billing")
//	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
//	defer stop()
//	err := leader.Run(ctx, func(ctx context.Context, lease *dlock.Lease) error {
//		for ctx.Err() == nil {
//			if err := bill(ctx, lease.Fence()); err != nil && ctx.Err() == nil {
//				return err // Run returns it
//			}
//		}
//		return nil // the term is over
//	})
//	err = errors.Join(err, client.Close())
//
// Every process runs this, with the same key. The function, which this page calls lead, runs in the
// process that leads, once for each term. The package is [dlock.Client.Do] in a loop, with rules.
// Let lead log its start and its end: an Observer logs the grant of a lock only for debugging.
//
// # Rules for lead
//
// Return soon after ctx has ended. A process stands for election again only when its lead has
// returned, so the work of two of its terms never overlaps. Wait with lead for all goroutines that
// it has started. Pass ctx to every call that can wait.
//
// Do not return before ctx has ended, unless Run is to return: a process whose lead returns, with
// an error or with nil, no longer stands. To let another process lead, call [Election.Resign]. To
// go on after an error of the work, handle it in lead.
//
// [context.Cause] says why ctx has ended. It matches [dlock.ErrLost] after a loss, and
// [ErrResigned] after Resign. Otherwise it is the cause of Run's ctx.
//
// # How long nobody leads
//
//	what happens                        the next leads
//	Run's ctx ends, Resign, a panic     one round trip after lead has returned
//	the leader dies or is stopped       when its TTL has passed, since its last renewal
//	the network cuts the leader off     likewise; its ctx has ended a second before
//	the store is away                   when the store is back and the old lease has ended
//	the store has lost its data         at once; the old leader learns of it with its next renewal
//
// The first row needs a store with a queue, such as Redis or memory. Without one the others
// notice within a quarter of a second.
//
// So [dlock.WithTTL] is a trade-off. A dead leader keeps others from leading for at most one TTL. A
// living one survives an outage of two thirds of the TTL less a second, which is about 18 s with the
// default of 30 s. (If the TTL is below 4 s, a quarter of the TTL is subtracted instead of a second.)
// With a TTL of a second or less, a short pause of the process or of the store may end a term.
//
// # Two leaders
//
// Until the deadline of the lease no other process leads, as long as the store keeps its data. lead's
// ctx ends a second before the deadline, and that second is for stopping. If lead is still at work at
// the deadline, because it ignores ctx or hangs, another process may lead beside it. No library can
// prevent that. There are three measures. Take the first if two leaders would do harm, and the second
// as well if they would cost money.
//
// End the process if lead is still at work a tenth of a second after the deadline, or after a loss
// that the store has reported. With a TTL of 10 s or more nobody else leads so soon, since the lease
// ends a hundredth of the TTL after its deadline. Put this first in lead:
//
//	returned := make(chan struct{})
//	defer close(returned)
//	context.AfterFunc(lease.Context(context.Background()), func() {
//		select {
//		case <-returned:
//		case <-time.After(100 * time.Millisecond):
//			os.Exit(1)
//		}
//	})
//
// Fence the writes: let the resource refuse those with a smaller fence (package fence). A process that
// was stopped for longer than its TTL may write when it resumes: the timer that ends ctx then fires
// late. [dlock.Lease.Err] and [Election.IsLeader] look at the clocks, so call one right before a write.
// A gap between the answer and the write remains, and only a fence helps there. See [dlock.WithFence],
// which makes Run fail if the store has no fences.
//
// If the store loses its data (FLUSHALL, a restart without persistence), another leads at once, and the
// old leader goes on until its next renewal, for at most a third of the TTL. Fences tell the two apart.
//
// Watch the Overrun of [dlock.ReleaseDoneInfo]: for that long, lead went on after the loss, or its
// process stood still.
//
// A breaker WithDegradation grants locks in the memory of each process while the store is away. Then
// each process would lead. With WithFence(true) such grants are refused, and Run waits for the
// store.
//
// # In an outage
//
// Run waits for the store, however long that takes, even if the store is away when Run begins. It
// makes an attempt about once a second, or every four seconds if requests hang. The leader goes on
// until a second before its deadline. From then on nobody leads. Work that must go on without the
// store cannot depend on an election.
//
// A store may answer and refuse. If it does so because of its own state (its memory or disk is full, it
// has too few replicas, or too many clients), Run waits as for a store that is away. If it refuses Run's
// first request for another reason, such as a wrong password, Run returns the error, so that a wrong
// configuration is found at once. Once this process has waited in the queue or led, Run asks again about
// once a second.
//
// # At the end of the process
//
// End Run's ctx, and wait until Run has returned: by then it has released the lock, or tried to for
// 5 s if the store is away. After that, close the Client, which tries again. If Run does not return,
// because lead hangs, [dlock.Client.Shutdown] with a time limit ends lead's ctx with
// [dlock.ErrClosed].
//
// # Beside lead
//
// Some code asks who leads instead of being called. For gocron, an [Election] is an Elector:
//
//	scheduler, err := gocron.NewScheduler(gocron.WithDistributedElector(leader))
//
// Such a program needs Run too, with a lead that waits for the end of its ctx. [Election.IsLeader]
// says that this process leads as long as lead's ctx has not ended. The end of the term does not
// interrupt a job that has begun. [Election.Leader] says which process leads, for people.
package election
