-- Answers that are stored when their step is stopped. Errors: those of 0002_functions.sql.

-- `call` is the attempt whose answer was stored and is not committed, and what it took: whoever stops the step does not
-- know of it. Its row in spent_calls keeps the attempt's own worker from counting it too, which in doubt does that.
create or replace function perdure.apply_commit_step(t perdure.threads, op jsonb) returns perdure.threads
language plpgsql as $$
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
    if op ? 'usage' then
        t := perdure.spend(t, (op ->> 'usage')::jsonb);
        if not op ? 'with_status' then
            update perdure.messages set usage = perdure.add_usage(usage, op ->> 'usage') where id = op ->> 'message_id';
        end if;
    elsif op ? 'call' then
        insert into perdure.spent_calls values (t.thread, v_turn, v_step, (op #>> '{call,attempt}')::int)
        on conflict do nothing;
        if found then
            t := perdure.spend(t, (op #>> '{call,usage}')::jsonb);
            update perdure.messages set usage = perdure.add_usage(usage, op #>> '{call,usage}')
            where id = op ->> 'message_id';
        end if;
    else
        t := perdure.spend(t, op);  -- as a writer of the release before says it
    end if;
    -- Whatever is left of earlier steps can no longer be committed either: one turn of a thread works at a time.
    delete from perdure.steps where thread = t.thread and (turn, step) <= (v_turn, v_step);
    delete from perdure.chunks where thread = t.thread and (turn, step) <= (v_turn, v_step);
    return perdure.mark_done(t, v_turn, v_step);
end $$;
