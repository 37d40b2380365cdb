-- Summaries of threads that have children, and readers that are told of them. Errors: those of 0002_functions.sql.

-- How far summaries alone have raised `shape`. Without them it is a number of what was said.
alter table perdure.threads add column summed bigint not null default 0;

-- The number of the change that tells of it; those that came before there was such a number have none.
alter table perdure.summaries add column seq bigint;
create index summaries_told on perdure.summaries (thread, seq) where seq is not null;

-- `path_shape` stays: the `add_summary` of before asks for it, if it was called already and has waited for the end of this.

-- The number of what a summary of the thread is made of: it rises with each change in the middle of the thread or of one
-- above it, and with each summary in the thread itself. One of a thread above leaves what it stands for as it was.
create function perdure.path_basis(t perdure.threads) returns bigint language sql stable as $$
    with recursive line as (
        select t.parent_thread_id, t.shape
      union all
        select p.parent_thread_id, p.shape - p.summed
        from line l join perdure.threads p on p.thread_id = l.parent_thread_id
    )
    select sum(line.shape)::bigint from line
$$;

-- A summary holds if its point is there, and what it was made of is as it was. The owner of the point is the thread
-- itself or one above it, and is locked first, as deletions do. A change of a thread further up that is not committed yet
-- cannot be seen here; but before it voids what hangs below it locks all threads there, and so waits for this one.
--
-- Readers are told of a summary in the thread itself. One that hangs on a message of a thread above, which no compaction
-- makes, has no number of this thread.
create or replace function perdure.add_summary(p_thread_id text, p_summary jsonb) returns boolean language plpgsql as $$
declare
    s perdure.summaries := jsonb_populate_record(null::perdure.summaries, p_summary);
    t perdure.threads;
    v_owner bigint := (select m.thread from perdure.messages m where m.id = s.message_id);
    v_known perdure.summaries;
begin
    perform from perdure.threads where thread = v_owner for no key update;
    t := perdure.lock_thread(p_thread_id);
    s.thread := t.thread;
    select * into v_known from perdure.summaries where id = s.id;
    if found then
        s.number := v_known.number;
        s.accepted := v_known.accepted;
        s.seq := v_known.seq;
        if v_known.message_id is not null and v_known is distinct from s then
            raise exception using errcode = 'unique_violation', message = 'a summary',
                detail = format('The summary %s is there with other content.', s.id);
        end if;
        return v_known.accepted;
    end if;
    -- Looked for once more: it may have gone while this waited for the lock.
    s.accepted := exists (select from perdure.messages where id = s.message_id)
        and (s.shape is null or s.shape = perdure.path_basis(t));
    s.seq := case when s.accepted and t.thread = v_owner then t.seq + 1 end;
    if not s.accepted then
        s.message_id := null;
        s.body := '""';
        s.items := null;
    end if;
    insert into perdure.summaries (id, thread, message_id, parts, body, kind, items, covered, previous_id, shape, usage,
                                   accepted, seq)
    values (s.id, s.thread, s.message_id, s.parts, s.body, s.kind, s.items, s.covered, s.previous_id, s.shape, s.usage,
            s.accepted, s.seq);
    if s.usage is not null then
        t := perdure.spend(t, s.usage::jsonb);
        update perdure.threads
        set (requests, input_tokens, output_tokens, cached_tokens, nano_usd, unpriced) =
            (t.requests, t.input_tokens, t.output_tokens, t.cached_tokens, t.nano_usd, t.unpriced)
        where thread = t.thread;
    end if;
    if s.accepted then
        update perdure.threads set seq = seq + 1, shape = seq + 1, summed = summed + (seq + 1 - shape)
        where thread = v_owner;
        perform pg_notify('perdure', p_thread_id);
    end if;
    return s.accepted;
end $$;
