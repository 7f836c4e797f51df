package rediscore

import (
	"context"

	"github.com/dlock-go/dlock/backend/internal/hashslot"
)

// What the tests of package rediscore_test see of this one.
var (
	AcquireScript = acquireScript
	AttendScript  = attendScript
	CheckInScript = checkInScript
	EnlistScript  = enlistScript
	EnqueueScript = enqueueScript
	PassScript    = passScript
	ReleaseScript = releaseScript
	RenewScript   = renewScript

	ErrUnexpected = errUnexpected
	ErrReplaced   = errReplaced

	Companion = companion
	Decisive  = decisive
	Forbidden = forbidden
	Rewrite   = rewrite
	Tags      = hashslot.Tags
)

// Scripts are all that is sent.
var Scripts = map[string]*Script{
	"acquire": acquireScript, "enqueue": enqueueScript, "checkin": checkInScript, "renew": renewScript,
	"acquire-set": setScript, "acquire-plain": plainAcquireScript, "release-plain": plainReleaseScript,
	"release": releaseScript, "releases": releasesScript, "free": freeScript, "inspect": inspectScript, "holder": holderScript, "slots": slotsScript,
	"vote": voteScript, "enlist": enlistScript, "attend": attendScript, "confirm": confirmScript, "pass": passScript,
}

const (
	CheckInPeriod      = checkInPeriod
	CheckInJitter      = checkInJitter
	ExpiryStagger      = expiryStagger
	ReservePeriod      = reservePeriod
	UnsubscribedPeriod = unsubscribedPeriod
	MaxUnsubscribed    = maxUnsubscribed
	MinUnsubscribed    = minUnsubscribed
	CallLimit          = callLimit
	Lingering          = lingering
	MinPause           = minPause
	MaxPause           = maxPause
	Lasting            = lasting
	MessageLag         = messageLag
	MinFollow          = minFollow
	DoubtPause         = doubtPause
	LeftPeriod         = leftPeriod
	MaxFollow          = maxFollow

	AnswerGranted = answerGranted
	AnswerWaits   = answerWaits
	AnswerFound   = answerFound
	AnswerUnknown = answerUnknown
	AnswerDeaf    = answerDeaf
	Unswept       = unswept
	CompanionMark = companionMark
	MaxExact      = maxExact
)

// KeysOf returns the keys of a lock: the lock, the fence counter, the queue, the waiters and the marker of votes.
func KeysOf(prefix, key string, cluster bool) [5]string {
	return newLockKeys(prefix, key, cluster).texts
}

// Judge judges the error of the client of one server.
func Judge(s *Script, err error) error { return JudgeOf(nil, s, err) }

// JudgeOf judges the error of a Conn.
func JudgeOf(conn Conn, s *Script, err error) error { return judge(s, err, guarded{conn}) }

// EvalScript calls a script as the methods of a Locker do, until it has done its work.
func (l *Locker) EvalScript(ctx context.Context, s *Script, key string, args ...string) (any, error) {
	return l.eval(ctx, s, key, args...)
}

// EvalCall makes a call, as the methods of a Locker do.
func (l *Locker) EvalCall(ctx context.Context, call Call) (any, error) { return l.evalOne(ctx, call) }

// ScriptCall is a call of a script.
func (l *Locker) ScriptCall(s *Script, key string, args ...string) Call {
	return l.call(s, key, args...)
}

// SetCall is a call of the script for a set.
func (l *Locker) SetCall(names []string, args ...string) Call {
	return Call{Script: setScript, Args: args, keys: l.keysOfSet(names)}
}

// ChangeInbox makes a waiter believe that its inbox was opened again, maybe on another server. So it checks in now.
func ChangeInbox(l *Locker, token string) {
	l.post.mu.Lock()
	defer l.post.mu.Unlock()
	w := l.post.tokens[token].wait
	w.mail.changed = true
	w.ring()
}

// Deliver is the arrival of a message.
func Deliver(l *Locker, message string) { l.post.deliver(message) }

// CloseIfIdle is what the timers of all inboxes do.
func CloseIfIdle(l *Locker) {
	for _, b := range l.post.inboxes {
		b.closeIfIdle()
	}
}

// Lanes returns how many lanes there are to a server, how many where flights are slow, and how many
// flights there are at once, with those that are overdue.
func Lanes(l *Locker) (usual, most, all int) {
	s := l.laneSettings()
	return s.Lanes, s.MaxLanes, s.MaxFlights
}

// Rooms returns how many rooms a Locker has.
func Rooms(l *Locker) int {
	l.post.mu.Lock()
	defer l.post.mu.Unlock()
	return len(l.post.rooms)
}
