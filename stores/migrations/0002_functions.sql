-- The writes that must lock a thread before they look at it. As functions they cost one round trip, and each of their
-- statements sees what was committed while they waited for the lock, which one statement with several parts would not.
--
-- Errors: PD001 no such thread, PD002 stale writer, PD003 step sealed, PD004 call not open, PD005 bug of the caller,
-- PD006 the step still streams.

create function perdure.lock_thread(p_thread_id text) returns perdure.threads language plpgsql as $$
declare
    t perdure.threads;
begin
    select * into t from perdure.threads where thread_id = p_thread_id for no key update;
    if not found then
        raise exception using errcode = 'PD001', message = p_thread_id;
    end if;
    return t;
end $$;

-- The end of a write that readers see, outside of batches: the raised number, and a hint to whoever listens.
create function perdure.touch_thread(t perdure.threads) returns void language sql as $$
    update perdure.threads set seq = t.seq where thread = t.thread;
    select pg_notify('perdure', t.thread_id);
$$;

-- Rows of messages are found by their id alone: given the thread as well, a plan that was made while the table was
-- empty may walk through all messages of the thread.

-- Parts go only to the end of a message of this thread: what a reader has of it stays the beginning of it.
create function perdure.add_parts(t perdure.threads, p_message_id text, p_start int, p_bodies text[])
returns perdure.threads language plpgsql as $$
declare
    v_thread bigint;
    v_end int;
begin
    select m.thread, (select count(*) from perdure.parts p where p.message_id = m.id) into v_thread, v_end
    from perdure.messages m where m.id = p_message_id;
    if v_thread is distinct from t.thread or v_end <> p_start then
        raise exception using errcode = 'PD005', message = format(
            'position %s is not the end of message %s in thread %s', p_start, p_message_id, t.thread_id);
    end if;
    insert into perdure.parts (message_id, position, thread, seq, body)
    select p_message_id, p_start + p.i - 1, t.thread, t.seq + p.i, p.body
    from unnest(p_bodies) with ordinality as p(body, i);
    t.seq := t.seq + cardinality(p_bodies);
    return t;
end $$;

-- `at` is the offset of the call's part from p_start; calls whose part was not kept are not opened. Those that were
-- refused come with their result, which is a change for readers like any other result.
create function perdure.open_calls(t perdure.threads, p_message_id text, p_start int, p_kept int, p_calls jsonb)
returns perdure.threads language plpgsql as $$
declare
    v_turn int := (select turn from perdure.messages where id = p_message_id);
    v_refused int;
begin
    with opened as (
        insert into perdure.calls (thread, call_id, message_id, position, turn, step, index, result, seq)
        select t.thread, c.call_id, p_message_id, p_start + c.at, coalesce(c.turn, v_turn), c.step, c.index, c.result,
               case when c.result is null then 0 else t.seq + count(c.result) over (order by c.at) end
        from jsonb_to_recordset(p_calls) as c(call_id text, at int, turn int, step int, index int, result text)
        where c.at < p_kept
        returning result
    )
    select count(result) into v_refused from opened;
    t.seq := t.seq + v_refused;
    return t;
end $$;

-- Batches: each operation takes the thread's row and hands it on changed; it is written once, at the end.

create function perdure.apply_append_messages(t perdure.threads, op jsonb) returns perdure.threads language plpgsql as $$
begin
    insert into perdure.messages (id, thread, seq, changed, role, parent_id, parent_parts, turn, state, reason,
                                  detail, input_id, metadata)
    select m.id, t.thread, t.seq + m.at, t.seq + m.at, m.role,
           case when m.on_head then coalesce(t.head_id, t.spawn_message_id) else m.parent_id end,
           case when m.on_head and t.head_id is null then t.spawn_parts else m.parent_parts end,
           m.turn, m.state, m.reason, m.detail, m.input_id, m.metadata
    from jsonb_to_recordset(op -> 'messages') as m(
        id text, at int, on_head boolean, role text, parent_id text, parent_parts int, turn int, state text,
        reason text, detail text, input_id text, metadata text);
    insert into perdure.parts (message_id, position, thread, seq, body)
    select p.message_id, p.position, t.thread, t.seq + p.at, p.body
    from jsonb_to_recordset(op -> 'parts') as p(message_id text, position int, at int, body text);
    t.seq := t.seq + (op ->> 'count')::int;
    t.head_id := op ->> 'head_id';
    t.turn := greatest(t.turn, (op ->> 'turn')::int);
    return t;
end $$;

create function perdure.apply_append_parts(t perdure.threads, op jsonb) returns perdure.threads language plpgsql as $$
declare
    v_bodies text[] := array(select jsonb_array_elements_text(op -> 'parts'));
begin
    t := perdure.add_parts(t, op ->> 'message_id', (op ->> 'start')::int, v_bodies);
    if op -> 'calls' <> '[]' then
        t := perdure.open_calls(t, op ->> 'message_id', (op ->> 'start')::int, cardinality(v_bodies), op -> 'calls');
    end if;
    return t;
end $$;

-- With `parts` in the operation the caller has put together what streamed, under the lock of this transaction.
create function perdure.apply_commit_step(t perdure.threads, op jsonb) returns perdure.threads language plpgsql as $$
declare
    s perdure.steps;
    v_turn int := (op ->> 'turn')::int;
    v_step int := (op ->> 'step')::int;
    v_bodies text[] := '{}';
begin
    select * into s from perdure.steps where thread = t.thread and turn = v_turn and step = v_step;
    if op ? 'parts' then
        v_bodies := array(select jsonb_array_elements_text(op -> 'parts'));
    elsif s.turn is not null and not (op ->> 'discard')::boolean then
        if s.outcome is null then
            raise exception using errcode = 'PD006', message = 'the step still streams';
        end if;
        v_bodies := case when (op ->> 'trim_reasoning')::boolean then s.parts[:s.kept] else s.parts end;
    end if;
    t := perdure.add_parts(t, op ->> 'message_id', (op ->> 'start')::int, v_bodies);
    if not op ? 'parts' and s.calls <> '[]' then
        t := perdure.open_calls(t, op ->> 'message_id', (op ->> 'start')::int, cardinality(v_bodies), s.calls);
    end if;
    t.requests := t.requests + (op ->> 'requests')::bigint;
    t.input_tokens := t.input_tokens + (op ->> 'input_tokens')::bigint;
    t.output_tokens := t.output_tokens + (op ->> 'output_tokens')::bigint;
    t.cached_tokens := t.cached_tokens + (op ->> 'cached_tokens')::bigint;
    -- Whatever is left of earlier steps can no longer be committed either.
    delete from perdure.steps where thread = t.thread and (turn, step) <= (v_turn, v_step);
    delete from perdure.chunks where thread = t.thread and (turn, step) <= (v_turn, v_step);
    if (v_turn, v_step) > (t.done_turn, t.done_step) then
        t.done_turn := v_turn;
        t.done_step := v_step;
    end if;
    return t;
end $$;

create function perdure.apply_stage_result(t perdure.threads, p_call_id text, p_result text) returns perdure.threads
language plpgsql as $$
begin
    update perdure.calls set result = p_result, seq = t.seq + 1
    where thread = t.thread and call_id = p_call_id and result is null;
    if found then
        t.seq := t.seq + 1;
    elsif not exists (select from perdure.calls where thread = t.thread and call_id = p_call_id) then
        raise exception using errcode = 'PD004', message = p_call_id;
    end if;
    return t;
end $$;

-- What a tool has returned (staged) goes before what the workflow made up.
create function perdure.apply_commit_results(t perdure.threads, op jsonb) returns perdure.threads language plpgsql as $$
declare
    v_bodies text[] := array(
        select coalesce(call.result, op -> 'results' ->> c.call_id)
        from jsonb_array_elements_text(op -> 'call_ids') with ordinality as c(call_id, i)
        left join perdure.calls call on call.thread = t.thread and call.call_id = c.call_id
        order by c.i);
begin
    if array_position(v_bodies, null) is not null then
        raise exception using errcode = 'PD005', message = format(
            'call %s is closed without a result', op -> 'call_ids' ->> array_position(v_bodies, null) - 1);
    end if;
    delete from perdure.calls using jsonb_array_elements_text(op -> 'call_ids') as c(id)
    where thread = t.thread and call_id = c.id;
    return perdure.add_parts(t, op ->> 'message_id', (op ->> 'start')::int, v_bodies);
end $$;

create function perdure.apply_set_status(t perdure.threads, op jsonb) returns perdure.threads language plpgsql as $$
declare
    v_thread bigint;
    v_state text;
begin
    select thread, state into v_thread, v_state from perdure.messages where id = op ->> 'message_id';
    if v_thread is distinct from t.thread then
        raise exception using errcode = 'PD005', message = format(
            'message %s, whose status was to be set, is not in thread %s', op ->> 'message_id', t.thread_id);
    elsif v_state in ('running', 'requires_action') then
        t.seq := t.seq + 1;
        update perdure.messages
        set state = op ->> 'state', reason = op ->> 'reason', detail = op ->> 'detail', changed = t.seq
        where id = op ->> 'message_id';
    end if;
    return t;
end $$;

-- Returns the refused inputs; without any, the batch is applied, now or by an earlier call.
create function perdure.append_messages(
    p_thread_id text, p_number bigint, p_sync_id text, p_inputs jsonb, p_operations jsonb
) returns table (refused text, conflict boolean) language plpgsql as $$
declare
    t perdure.threads := perdure.lock_thread(p_thread_id);
    op jsonb;
begin
    if t.version = p_number and t.sync_id = p_sync_id then
        return;
    elsif t.version <> p_number - 1 then
        raise exception using errcode = 'PD002', message = t.version::text;
    end if;
    if p_inputs <> '{}' then
        return query
            select i.input_id, i.digest is distinct from p_inputs ->> i.input_id
            from perdure.inputs i
            where i.thread = t.thread and i.input_id = any(array(select jsonb_object_keys(p_inputs)));
        if found then
            return;
        end if;
        insert into perdure.inputs (thread, input_id, digest) select t.thread, key, value from jsonb_each_text(p_inputs);
    end if;
    for op in select jsonb_array_elements(p_operations) loop
        case op ->> 'kind'
            when 'append_messages' then t := perdure.apply_append_messages(t, op);
            when 'append_parts' then t := perdure.apply_append_parts(t, op);
            when 'commit_step' then t := perdure.apply_commit_step(t, op);
            when 'stage_result' then t := perdure.apply_stage_result(t, op ->> 'call_id', op ->> 'result');
            when 'commit_results' then t := perdure.apply_commit_results(t, op);
            when 'set_status' then t := perdure.apply_set_status(t, op);
            when 'track_subscription' then
                insert into perdure.subscriptions (thread, call_id, tool)
                values (t.thread, op ->> 'call_id', op ->> 'tool') on conflict do nothing;
            when 'remove_subscription' then
                delete from perdure.subscriptions where thread = t.thread and call_id = op ->> 'call_id';
        end case;
    end loop;
    update perdure.threads
    set (head_id, version, sync_id, seq, turn, done_turn, done_step, requests, input_tokens, output_tokens,
         cached_tokens) = (t.head_id, p_number, p_sync_id, t.seq, t.turn, t.done_turn, t.done_step, t.requests,
                           t.input_tokens, t.output_tokens, t.cached_tokens)
    where thread = t.thread;
    perform pg_notify('perdure', p_thread_id);
end $$;

-- The turn buffer.

-- The step's row for this attempt, not yet written. `began` is above the thread's number if the attempt is new, and
-- then what an earlier one had streamed is gone. A done step is returned as it is; other late writers are refused.
create function perdure.claim_step(t perdure.threads, p_turn int, p_step int, p_attempt int) returns perdure.steps
language plpgsql as $$
declare
    s perdure.steps;
begin
    if (p_turn, p_step) <= (t.done_turn, t.done_step) then
        raise exception using errcode = 'PD003', message = 'was stopped or committed';
    end if;
    select * into s from perdure.steps where thread = t.thread and turn = p_turn and step = p_step;
    if s.outcome is not null or s.attempt = p_attempt then
        return s;
    elsif s.attempt > p_attempt then
        raise exception using errcode = 'PD003', message = format('was taken over by attempt %s', s.attempt);
    elsif s.attempt < p_attempt then
        delete from perdure.chunks where thread = t.thread and turn = p_turn and step = p_step;
    end if;
    return (t.thread, p_turn, p_step, p_attempt, t.seq + 1, null, null, null, null)::perdure.steps;
end $$;

create function perdure.put_step(s perdure.steps) returns void language sql as $$
    insert into perdure.steps select s.*
    on conflict (thread, turn, step) do update
    set (attempt, began, parts, kept, calls, outcome) =
        (excluded.attempt, excluded.began, excluded.parts, excluded.kept, excluded.calls, excluded.outcome);
$$;

-- Streams the chunks of one attempt into the turn buffer and returns the thread with its number raised.
create function perdure.add_chunks(
    t perdure.threads, p_turn int, p_step int, p_attempt int, p_chunks text[], p_first int
) returns perdure.threads language plpgsql as $$
declare
    v_end int;
begin
    select c.ordinal + 1 into v_end from perdure.chunks c
    where c.thread = t.thread and c.turn = p_turn and c.step = p_step order by c.seq desc limit 1;
    v_end := coalesce(v_end, 0);
    if p_first > v_end then
        raise exception using errcode = 'PD005', message = format('chunks from %s after %s', p_first, v_end);
    end if;
    -- A repeated call brings chunks that are there already.
    p_chunks := p_chunks[v_end - coalesce(p_first, v_end) + 1:];
    insert into perdure.chunks (thread, seq, turn, step, attempt, ordinal, body)
    select t.thread, t.seq + c.i, p_turn, p_step, p_attempt, v_end + c.i - 1, c.body
    from unnest(p_chunks) with ordinality as c(body, i);
    t.seq := t.seq + cardinality(p_chunks);
    return t;
end $$;

-- The same attempt begins again only if its process lost track of it, so what it had streamed is void as well.
create function perdure.begin_step(p_thread_id text, p_turn int, p_step int, p_attempt int)
returns table (attempt int, parts text[], outcome text) language plpgsql as $$
declare
    t perdure.threads := perdure.lock_thread(p_thread_id);
    s perdure.steps := perdure.claim_step(t, p_turn, p_step, p_attempt);
begin
    if s.outcome is null then
        delete from perdure.chunks c where c.thread = t.thread and c.turn = p_turn and c.step = p_step;
        t.seq := t.seq + 1;
        s.began := t.seq;
        perform perdure.put_step(s);
        perform perdure.touch_thread(t);
    end if;
    return query select s.attempt, s.parts, s.outcome;
end $$;

create function perdure.append_chunks(
    p_thread_id text, p_turn int, p_step int, p_attempt int, p_chunks text[], p_first int
) returns void language plpgsql as $$
declare
    t perdure.threads := perdure.lock_thread(p_thread_id);
    s perdure.steps := perdure.claim_step(t, p_turn, p_step, p_attempt);
begin
    if s.outcome is not null then
        raise exception using errcode = 'PD003', message = format('was finished by attempt %s', s.attempt);
    elsif s.began > t.seq then
        perform perdure.put_step(s);
        t.seq := s.began;
    end if;
    t := perdure.add_chunks(t, p_turn, p_step, p_attempt, p_chunks, p_first);
    -- No hint from here: notifications are serialized over the whole cluster, and this is the write that is frequent.
    update perdure.threads set seq = t.seq where thread = t.thread;
end $$;

create function perdure.finish_step(
    p_thread_id text, p_turn int, p_step int, p_attempt int,
    p_parts text[], p_kept int, p_calls jsonb, p_outcome text, p_chunks text[]
) returns void language plpgsql as $$
declare
    t perdure.threads := perdure.lock_thread(p_thread_id);
    s perdure.steps := perdure.claim_step(t, p_turn, p_step, p_attempt);
begin
    if s.outcome is not null and s.attempt = p_attempt and s.parts = p_parts then
        return;  -- a retry after a lost reply
    elsif s.outcome is not null then
        raise exception using errcode = 'PD003', message = format('was finished by attempt %s', s.attempt);
    end if;
    t.seq := greatest(t.seq, s.began);
    s.parts := p_parts;
    s.kept := p_kept;
    s.calls := p_calls;
    s.outcome := p_outcome;
    perform perdure.put_step(s);
    perform perdure.touch_thread(perdure.add_chunks(t, p_turn, p_step, p_attempt, p_chunks, null));
end $$;

-- Calls.

-- A call that has its result is not started again, nor is one that this owner has started last: its reply was lost.
create function perdure.start_call(p_thread_id text, p_call_id text, p_owner text) returns perdure.calls
language plpgsql as $$
declare
    t perdure.threads := perdure.lock_thread(p_thread_id);
    c perdure.calls;
begin
    select * into c from perdure.calls where thread = t.thread and call_id = p_call_id;
    if not found then
        raise exception using errcode = 'PD004', message = p_call_id;
    elsif c.result is null and (c.owner = p_owner) is not true then
        t.seq := t.seq + 1;
        update perdure.calls set started = started + 1, owner = p_owner, seq = t.seq
        where thread = t.thread and call_id = p_call_id returning * into c;
        perform perdure.touch_thread(t);
    end if;
    return c;
end $$;

create function perdure.stage_result(p_thread_id text, p_call_id text, p_result text) returns text language plpgsql as $$
declare
    t perdure.threads := perdure.lock_thread(p_thread_id);
begin
    perform perdure.touch_thread(perdure.apply_stage_result(t, p_call_id, p_result));
    return (select result from perdure.calls where thread = t.thread and call_id = p_call_id);
end $$;
