-- What is done to the tree and to calls within a batch.
--
-- Errors: those of 0002_functions.sql.

-- The first decision stays, and nobody has to wait for one any more.
create function perdure.apply_decide(t perdure.threads, op jsonb) returns perdure.threads language plpgsql as $$
declare
    c perdure.calls;
begin
    select * into c from perdure.calls where thread = t.thread and call_id = op ->> 'call_id';
    update perdure.parts set decision = op ->> 'decision', decided = t.seq + 1
    where message_id = c.message_id and position = c.position and decision is null;
    if found then
        update perdure.calls set due = null, seq = t.seq + 2 where thread = t.thread and call_id = c.call_id;
        t.seq := t.seq + 2;
    end if;
    return t;
end $$;

create function perdure.remember_decision(t perdure.threads, op jsonb) returns void language sql as $$
    delete from perdure.decisions
    where thread = t.thread and tool = op ->> 'tool' and arguments = coalesce(op ->> 'arguments', '');
    insert into perdure.decisions (thread, tool, arguments, approved, decided_by)
    values (t.thread, op ->> 'tool', coalesce(op ->> 'arguments', ''), (op ->> 'approved')::boolean, op ->> 'by');
$$;

create function perdure.apply_show_interim(t perdure.threads, op jsonb) returns perdure.threads language plpgsql as $$
begin
    update perdure.calls set interim = op ->> 'result', seq = t.seq + 1
    where thread = t.thread and call_id = op ->> 'call_id';
    if found then
        t.seq := t.seq + 1;
    end if;
    return t;
end $$;

-- Threads below whose path has one of these messages have another path from now on: their readers need a new snapshot.
-- What is kept of their paths is void by itself, since its shape counts this thread's.
--
-- Nobody waits in a circle. Rows of threads are locked from the top down: whoever comes here holds the row of the thread
-- above, and takes these in the order of their numbers, in which each thread comes after its parent, since it was made
-- after it. And no message is locked yet (`remove_messages` does that later), so a thread below that waits for one that
-- it hangs its own on, its row in hand, waits for nobody who comes here.
create function perdure.tell_below(t perdure.threads, p_ids text[]) returns void language sql as $$
    with recursive below as (
        select id from unnest(p_ids) as id
        where exists (select from perdure.threads c where c.parent_thread_id = t.thread_id)
      union
        select m.id from below b join perdure.messages m on m.parent_id = b.id
    ), locked as materialized (
        select c.thread from perdure.threads c
        where c.spawn_message_id in (select below.id from below) order by c.thread for no key update
    ), told as (
        update perdure.threads c set seq = c.seq + 1, tree_seq = c.seq + 1
        from locked where c.thread = locked.thread
        returning c.thread_id
    )
    select pg_notify('perdure', told.thread_id) from told;
$$;

-- Bodies are searched and changed as text, since jsonb refuses some of them. It is exact: a quotation mark within a
-- JSON string is escaped, so what is looked for with its quotation marks is a field. The step is that of the part whose
-- place the result takes. Readers have that part already, so they need a new snapshot.
create function perdure.apply_store_late_result(t perdure.threads, op jsonb) returns perdure.threads
language plpgsql as $$
begin
    if exists (select from perdure.calls
               where thread = t.thread and call_id = op ->> 'call_id' and message_id = op ->> 'message_id') then
        return perdure.apply_stage_result(t, op ->> 'call_id', op ->> 'result');
    end if;
    update perdure.parts p
    set body = overlay(op ->> 'placed' placing coalesce(substring(p.body from '[{,]("step":\d+)') || ',', '')
                       from 2 for 0)
    where p.message_id = op ->> 'message_id' and p.thread is not distinct from t.thread
      and strpos(p.body, '"kind":"tool_result"') > 0 and strpos(p.body, op ->> 'named') > 0
      and p.body ~ '"outcome":"(interrupted|cancelled|expired)"';
    if found then
        t.seq := t.seq + 1;
        t.tree_seq := t.seq;
        t.shape := t.seq;
        perform perdure.tell_below(t, array[op ->> 'message_id']);
    elsif (op ->> 'refuses')::boolean and not exists (
        select from perdure.parts p
        where p.message_id = op ->> 'message_id' and p.thread is not distinct from t.thread
          and strpos(p.body, '"kind":"tool_call"') > 0 and strpos(p.body, op ->> 'named') > 0
    ) then
        raise exception using errcode = 'PD008', message = op ->> 'message_id', detail = op ->> 'call_id';
    end if;
    return t;
end $$;

-- Removes those of the blobs that nothing in the thread or below it names: whoever may read a blob may name it.
create function perdure.purge_blobs(t perdure.threads, p_blobs text[]) returns void language plpgsql as $$
declare
    v_here text[] := array(
        select encode(b.sha256, 'hex') from perdure.blobs b
        where b.thread = t.thread
          and b.sha256 = any(array(
              select decode(blob, 'hex') from unnest(p_blobs) as blob where blob is distinct from t.spent_blob)));
begin
    if v_here = '{}' then
        return;
    end if;
    with recursive family as (
        select t.thread, t.thread_id
      union all
        select c.thread, c.thread_id from family f join perdure.threads c on c.parent_thread_id = f.thread_id
    ), body as (
        select p.body from family f join perdure.parts p on p.thread = f.thread
      union all
        select unnest(array[c.result, c.interim]) from family f join perdure.calls c on c.thread = f.thread
      union all
        select v.content from family f join perdure.views v on v.thread = f.thread
      union all
        select unnest(s.parts) from family f join perdure.steps s on s.thread = f.thread
      union all
        select c.body from family f join perdure.chunks c on c.thread = f.thread
    ), named as materialized (
        select distinct hex[1] as blob from body, regexp_matches(body.body, '[0-9a-f]{64}', 'g') as hex
    )
    delete from perdure.blobs b using unnest(v_here) as here(blob)
    where b.thread = t.thread and b.sha256 = decode(here.blob, 'hex')
      and not exists (select from named where named.blob = here.blob);
end $$;

-- Turns whose messages go or are another's now. Late writers would bring their words back: of the newest turn they are
-- refused by this mark, of older ones since nothing of theirs runs.
create function perdure.end_turns(t perdure.threads, p_turns int[]) returns perdure.threads language plpgsql as $$
begin
    delete from perdure.steps where thread = t.thread and turn = any(p_turns);
    delete from perdure.chunks where thread = t.thread and turn = any(p_turns);
    if t.done_turn <= any(p_turns) then
        t := perdure.mark_done(t, (select max(turn) from unnest(p_turns) as turn), 2147483647);
    end if;
    return t;
end $$;

-- The content of messages goes: parts, open calls with the questions about them, arguments that subscriptions show.
create function perdure.forget_content(t perdure.threads, p_ids text[]) returns void language plpgsql as $$
begin
    update perdure.subscriptions s set arguments = '"{}"'
    where s.thread = t.thread and exists (
        select from perdure.parts p
        where p.message_id = any(p_ids) and strpos(p.body, '"kind":"tool_call"') > 0
          and strpos(p.body, '"call_id":' || to_json(s.call_id)) > 0);
    delete from perdure.calls where thread = t.thread and message_id = any(p_ids);
    delete from perdure.parts where message_id = any(p_ids);
end $$;

-- What is left of messages that go: nothing of their content, and the fact that their inputs were accepted. Threads
-- that inherit up to one of them inherit up to the heir, whole, or what this thread inherits. Their rows are locked
-- before the messages are: their writers hold them while they wait for a message that they hang theirs on.
create function perdure.remove_messages(t perdure.threads, p_ids text[], p_heir_id text) returns perdure.threads
language plpgsql as $$
declare
    v_heir text := coalesce(p_heir_id, t.spawn_message_id);
    v_parts int := case when p_heir_id is null then t.spawn_parts end;
    v_turns int[];
begin
    perform from perdure.threads where spawn_message_id = any(p_ids) order by thread for no key update;
    perform from perdure.messages where id = any(p_ids) for update;
    update perdure.threads
    set spawn_message_id = v_heir, spawn_parts = v_parts,
        head_id = case when head_id = any(p_ids) then v_heir else head_id end
    where spawn_message_id = any(p_ids);
    update perdure.messages set parent_id = v_heir, parent_parts = v_parts
    where parent_id = any(p_ids) and thread <> t.thread;
    update perdure.inputs i set digest = null, seq = m.seq
    from perdure.messages m where m.id = any(p_ids) and i.thread = t.thread and i.input_id = m.input_id;
    v_turns := array(select m.turn from perdure.messages m where m.id = any(p_ids) and m.role = 'assistant');
    perform perdure.forget_content(t, p_ids);
    delete from perdure.messages where id = any(p_ids);
    return perdure.end_turns(t, v_turns);
end $$;

-- What messages from outside bring. Those that are there already (`known`) get another content, and a new turn if they
-- can go on.
create function perdure.apply_import_messages(t perdure.threads, op jsonb) returns perdure.threads language plpgsql as $$
declare
    v_known text[] := array(
        select n.id from jsonb_to_recordset(op -> 'messages') as n(id text, known boolean) where n.known);
begin
    perform perdure.forget_content(t, v_known);
    t := perdure.end_turns(t, array(
        select m.turn
        from jsonb_to_recordset(op -> 'messages') as n(id text, known boolean, turn int)
        join perdure.messages m on m.id = n.id
        where n.known and n.turn <> 0));
    update perdure.messages m
    set changed = t.seq + n.at, state = n.state, reason = n.reason, detail = n.detail, metadata = n.metadata,
        source_id = n.source_id, turn = case when n.turn = 0 then m.turn else n.turn end, done_step = null
    from jsonb_to_recordset(op -> 'messages') as n(
        id text, known boolean, at int, turn int, state text, reason text, detail text, metadata text, source_id text)
    where n.known and m.id = n.id;
    insert into perdure.messages (id, thread, seq, changed, role, parent_id, parent_parts, turn, state, reason, detail,
                                  metadata, source_id, place, given_id, created_at)
    select m.id, t.thread, t.seq + m.at, t.seq + m.at, m.role, coalesce(m.parent_id, t.spawn_message_id),
           case when m.parent_id is null then t.spawn_parts end, m.turn, m.state, m.reason, m.detail, m.metadata,
           m.source_id, m.place, m.given_id, m.created_at
    from jsonb_to_recordset(op -> 'messages') as m(
        id text, known boolean, at int, role text, parent_id text, turn int, state text, reason text, detail text,
        metadata text, source_id text, place bigint, given_id text, created_at timestamptz)
    where not m.known;
    insert into perdure.parts (message_id, position, thread, seq, body, decision)
    select p.message_id, p.position, t.thread, t.seq + p.at, p.body, p.decision
    from jsonb_to_recordset(op -> 'parts') as p(message_id text, position int, at int, body text, decision text);
    insert into perdure.calls (thread, call_id, message_id, position, turn, step, index, result, interim, seq)
    select t.thread, c.call_id, c.message_id, c.position, c.turn, c.step, c.index, c.result, c.interim,
           coalesce(t.seq + c.at, 0)
    from jsonb_to_recordset(op -> 'calls') as c(
        call_id text, message_id text, position int, turn int, step int, index int, result text, interim text, at int);
    t.seq := t.seq + (op ->> 'count')::int;
    t.turn := greatest(t.turn, (op ->> 'turn')::int);
    t.spent_blob := op ->> 'blob';
    return t;
end $$;

create function perdure.apply_annotate_message(t perdure.threads, op jsonb) returns perdure.threads language plpgsql as $$
begin
    t.seq := t.seq + 1;
    update perdure.messages set metadata = op ->> 'metadata', changed = t.seq where id = op ->> 'message_id';
    return t;
end $$;

-- What an operation did to the tree: first what moved, since what it hung on may go.
create function perdure.apply_change_tree(t perdure.threads, op jsonb) returns perdure.threads language plpgsql as $$
begin
    update perdure.messages m
    set parent_id = coalesce(n.parent_id, t.spawn_message_id), place = n.place,
        parent_parts = case when n.parent_id is null then t.spawn_parts end
    from jsonb_to_recordset(op -> 'moved') as n(id text, parent_id text, place bigint) where m.id = n.id;
    update perdure.messages m set remembered = r.child_id
    from jsonb_to_recordset(op -> 'remembered') as r(id text, child_id text) where m.id = r.id;
    if op ? 'root' then
        t.remembered := op ->> 'root';
    end if;
    t.head_id := op ->> 'head_id';
    if op -> 'removed' <> '[]' then
        t := perdure.remove_messages(
            t, array(select jsonb_array_elements_text(op -> 'removed')), op ->> 'heir_id');
    end if;
    t.seq := greatest(t.seq, (op ->> 'place')::bigint);
    if (op ->> 'redraws')::boolean then
        t.seq := t.seq + 1;
        t.tree_seq := t.seq;
    end if;
    if (op ->> 'reshapes')::boolean then
        t.shape := t.seq;
    end if;
    return t;
end $$;

-- An input whose digest is gone was the one of a message that was deleted: to bring it again is no conflict.
create or replace function perdure.append_messages(
    p_thread_id text, p_number bigint, p_sync_id text, p_inputs jsonb, p_operations jsonb
) returns table (refused text, conflict boolean) language plpgsql as $$
declare
    t perdure.threads := perdure.lock_thread(p_thread_id);
    v_spent text := t.spent_blob;
    v_place bigint;
    op jsonb;
begin
    if t.version = p_number and t.sync_id = p_sync_id then
        return;
    elsif t.version <> p_number - 1 then
        raise exception using errcode = 'PD002', message = t.version::text;
    end if;
    if p_inputs <> '{}' then
        return query
            select i.input_id, coalesce(i.digest <> coalesce(p_inputs ->> i.input_id, ''), false)
            from perdure.inputs i
            where i.thread = t.thread and i.input_id = any(array(select jsonb_object_keys(p_inputs)));
        if found then
            return;
        end if;
        insert into perdure.inputs (thread, input_id, digest) select t.thread, key, value from jsonb_each_text(p_inputs);
    end if;
    t.spent_blob := null;
    for op, v_place in select * from jsonb_array_elements(p_operations) with ordinality loop
        case op ->> 'kind'
            when 'append_messages' then t := perdure.apply_append_messages(t, op);
            when 'append_parts' then t := perdure.apply_append_parts(t, op);
            when 'commit_step' then t := perdure.apply_commit_step(t, op);
            when 'stage_result' then t := perdure.apply_stage_result(t, op ->> 'call_id', op ->> 'result');
            when 'commit_results' then t := perdure.apply_commit_results(t, op);
            when 'set_status' then t := perdure.apply_set_status(t, op);
            when 'set_due' then t := perdure.apply_set_due(t, op);
            when 'close_thread' then t.closed_at := coalesce(t.closed_at, now());
            when 'track_subscription' then perform perdure.track_subscription(t, op);
            when 'remove_subscription' then
                delete from perdure.subscriptions where thread = t.thread and call_id = op ->> 'call_id';
            when 'decide' then t := perdure.apply_decide(t, op);
            when 'remember_decision' then perform perdure.remember_decision(t, op);
            when 'forget_decisions' then delete from perdure.decisions where thread = t.thread;
            when 'show_interim' then t := perdure.apply_show_interim(t, op);
            when 'store_late_result' then t := perdure.apply_store_late_result(t, op);
            when 'annotate_message' then t := perdure.apply_annotate_message(t, op);
            when 'import_messages' then t := perdure.apply_import_messages(t, op);
            when 'change_tree' then t := perdure.apply_change_tree(t, op);
            when 'forget_title' then t.title := null;
        end case;
        if op ? 'inputs' then
            update perdure.inputs set seq = t.seq + v_place / 1000000::numeric
            where thread = t.thread and input_id = any(array(select jsonb_array_elements_text(op -> 'inputs')));
        end if;
    end loop;
    if v_spent is not null then
        perform perdure.purge_blobs(t, array[v_spent]);
    end if;
    update perdure.threads
    set (head_id, version, sync_id, seq, turn, done_turn, done_step, requests, input_tokens, output_tokens,
         cached_tokens, closed_at, title, remembered, tree_seq, shape, spent_blob) =
        (t.head_id, p_number, p_sync_id, t.seq, t.turn, t.done_turn, t.done_step, t.requests, t.input_tokens,
         t.output_tokens, t.cached_tokens, t.closed_at, t.title, t.remembered, t.tree_seq, t.shape, t.spent_blob)
    where thread = t.thread;
    perform pg_notify('perdure', p_thread_id);
end $$;
